"""The live view: a terminal screen that can be left open.

In: an iterator of records, from a sampler or from a recording that is being written. Out: a screen with a
row a GPU and its history, processes, driver events and the host. `q` quits, a digit shows one GPU large,
Escape goes back, space holds the picture still while readings go on.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Footer, Static
from textual.worker import Worker, WorkerState, get_current_worker

from gpuproof.errors import GpuproofError
from gpuproof.observe import live_text
from gpuproof.observe.live_state import LiveState
from gpuproof.observe.stream import Records, batches


class LiveView(App[None]):
    """The application: one thread reads records, the screen is drawn from the state they make."""

    TITLE = "gpuproof monitor live"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: $background; }
    #head { height: 1; margin: 0 0 1 0; background: $panel; }
    #overview, #detail { height: 1fr; }
    #detail { display: none; }
    .title { color: $text-muted; margin: 1 0 0 1; text-style: bold; }
    #devices { height: auto; }
    #host { height: 1; margin: 1 0 0 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("space", "hold", "Hold still"),
        Binding("escape", "overview", "All GPUs"),
        *(Binding(str(n), f"detail({n})", "One GPU", key_display="0–9", show=n == 0) for n in range(10)),
    ]

    def __init__(self, records: Records) -> None:
        super().__init__()
        self.state = LiveState()
        self.failure: GpuproofError | None = None
        """Why the readings stopped, for the caller to raise once the terminal is its own again."""
        self._records = records
        self._chosen: int | None = None
        self._held = False

    def compose(self) -> ComposeResult:
        """Lay out the screen."""
        yield Static(id="head")
        with VerticalScroll(id="overview"):
            yield Static(id="devices")
            yield Static(id="host")
            yield Static("Processes", classes="title")
            yield Static(id="processes")
            yield Static("Driver events", classes="title")
            yield Static(id="events")
        with VerticalScroll(id="detail"):
            yield Static(id="one")
        yield Footer()

    def on_mount(self) -> None:
        """Start to read."""
        self.run_worker(self._read, thread=True, exit_on_error=False)
        self._draw()

    def on_resize(self) -> None:
        """Fit the picture to the new size."""
        self._draw()

    def _read(self) -> None:
        worker = get_current_worker()
        with closing(batches(self._records)) as incoming:
            for batch in incoming:
                if worker.is_cancelled:
                    return
                if batch:
                    self.call_from_thread(self._take, batch)
        self.call_from_thread(self._stop)

    def _take(self, batch: list[Any]) -> None:
        self.state.apply(batch)
        self._draw()

    def _stop(self) -> None:
        self.state.stopped = True
        self._draw()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Leave with the reason when the readings fail; a fault of ours is not hidden."""
        if event.state is not WorkerState.ERROR:
            return
        error = event.worker.error
        if not isinstance(error, GpuproofError):
            raise error or RuntimeError("the reader failed without an error")
        self.failure = error
        self.exit()

    def _draw(self) -> None:
        if self._held:
            return
        width = self.size.width
        head = live_text.head_line(self.state)
        self.query_one("#head", Static).update(head)
        self.query_one("#devices", Static).update(live_text.device_table(self.state, width=width))
        self.query_one("#host", Static).update(live_text.host_line(self.state, width=width))
        self.query_one("#processes", Static).update(live_text.process_table(self.state))
        self.query_one("#events", Static).update(live_text.event_lines(self.state))
        device = None if self._chosen is None else self.state.devices.get(self._chosen)
        if device is not None:
            self.query_one("#one", Static).update(live_text.device_detail(device, width=width))

    def action_detail(self, place: int) -> None:
        """Show the GPU of that physical index large."""
        if place not in self.state.devices:
            self.notify(f"There is no GPU {place}", severity="warning")
            return
        self._chosen = place
        self._show(detail=True)

    def action_overview(self) -> None:
        """Go back to all GPUs."""
        self._chosen = None
        self._show(detail=False)

    def action_hold(self) -> None:
        """Hold the picture still, or let it go on."""
        self._held = not self._held
        self.notify("Held; readings go on" if self._held else "Live again")
        self._draw()

    def _show(self, *, detail: bool) -> None:
        self.query_one("#overview").display = not detail
        self.query_one("#detail").display = detail
        self._draw()


def run_live(records: Records) -> None:
    """Show records on the terminal until the user quits.

    Raises:
        GpuproofError: the readings stopped with an error.
    """
    view = LiveView(records)
    view.run()
    if view.failure is not None:
        raise view.failure
