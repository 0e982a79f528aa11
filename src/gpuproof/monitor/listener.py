"""Wakes the sampler on signals, on marks from the workload, and when its parent exits.

In: descriptors and a process ID. Out: a single wait that returns early when something happens, the marks
received, and the reason to stop. Nothing here busy-waits: the process sleeps in the kernel until it is woken.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import threading
from types import FrameType
from typing import Any, Protocol

from gpuproof.monitor.marks import MarkReader
from gpuproof.processes.start import ENDING_SIGNALS

READY = b"ready\n"
"""Message that the sampler sends on its control socket once it has read the first counters or has stopped
waiting for drivers."""


class Listener(Protocol):
    """Information that a sampler needs about signals, marks and its parent process."""

    exit_code: int | None
    """The exit code of the watched command, once the parent has sent it."""

    @property
    def bad_marks(self) -> int:
        """Lines from the workload that were not marks."""

    def wait(self, seconds: float) -> None:
        """Sleep for this long, or until something arrives."""

    def stop_reason(self) -> str | None:
        """Return why the recording should stop now; None while it should continue."""

    def marks(self, now_s: float) -> list[tuple[float, dict[str, Any]]]:
        """Return the marks that arrived, each with its publication time and content."""

    def ready(self) -> None:
        """Notify anyone waiting that the recording has started."""


class SystemListener:
    """Listens for signals, marks and the parent's messages. Created once per process, in its main thread."""

    def __init__(
        self,
        *,
        marks_fd: int | None = None,
        control_fd: int | None = None,
        parent_pid: int | None = None,
    ) -> None:
        self.exit_code: int | None = None
        self._reason: str | None = None
        self._parent_pid = parent_pid
        self._ready_lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._wake, wake_writer = socket.socketpair()
        for end in (self._wake, wake_writer):
            end.setblocking(False)
        self._wake_writer = wake_writer
        signal.set_wakeup_fd(wake_writer.fileno(), warn_on_full_buffer=False)
        for number in ENDING_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._marks = None if marks_fd is None else MarkReader(marks_fd)
        if marks_fd is not None:
            self._selector.register(marks_fd, selectors.EVENT_READ)
        self._control = None if control_fd is None else socket.socket(fileno=control_fd)
        if self._control is not None:
            self._selector.register(self._control, selectors.EVENT_READ)

    @property
    def bad_marks(self) -> int:
        """Lines on the pipe that were not JSON objects."""
        return 0 if self._marks is None else self._marks.bad_lines

    def wait(self, seconds: float) -> None:
        """Sleep until a signal, a mark or a message from the parent arrives, for at most `seconds`."""
        for key, _ in self._selector.select(max(0.0, seconds)):
            if key.fileobj is self._wake:
                with contextlib.suppress(BlockingIOError):
                    self._wake.recv(4096)
            elif self._control is not None and key.fileobj is self._control:
                self._selector.unregister(self._control)
                self._reason, self.exit_code = _parent_message(self._control)

    def stop_reason(self) -> str | None:
        """Return the reason to stop, if any; this also checks the parent."""
        if self._reason is None and self._parent_pid is not None and os.getppid() != self._parent_pid:
            self._reason = "parent gone"
        return self._reason

    def marks(self, now_s: float) -> list[tuple[float, dict[str, Any]]]:
        """Return what the workload has published since the last call."""
        if self._marks is None:
            return []
        taken = list(self._marks.take(now_s))
        if self._marks.closed:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._marks.descriptor)
        return taken

    def ready(self) -> None:
        """Send this message on the control socket; if the parent has exited, the next wait detects it.

        Any thread may call this.
        """
        if self._control is not None and not self._ready_lock.acquire(blocking=False):
            return
        if self._control is not None:
            with contextlib.suppress(BrokenPipeError):
                self._control.sendall(READY)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._reason = self._reason or signal.Signals(number).name


def _parent_message(control: socket.socket) -> tuple[str, int | None]:
    """Read the parent's only message: the command's exit code, or notice that the parent has exited."""
    try:
        message = control.recv(4096)
    except ConnectionError:
        message = b""
    if not message:
        return "parent gone", None
    return "command ended", json.loads(message)["exit_code"]
