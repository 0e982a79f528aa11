"""The live view: a terminal screen that can be left open, for one machine or many.

In: an iterator of records for each host, from a sampler or from a recording in progress. Out: a screen with a
row per GPU, driver events, the host and processes. `q` quits, a digit enlarges one GPU, Escape goes back, `s`
sorts the processes, `/` filters them, `h` switches between hosts, `t` toggles light and dark, space pauses
the screen while readings continue, and `?` shows what each key does.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Any, ClassVar

from rich.console import Group, RenderableType
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Footer, Input, Static
from textual.worker import Worker, WorkerState, get_current_worker

from gpuproof.base.errors import GpuproofError
from gpuproof.observe.live_panes import ORDERS, device_detail, process_table
from gpuproof.observe.live_state import DeviceState, LiveState
from gpuproof.observe.live_table import device_table, history_charts, models
from gpuproof.observe.live_text import BAD, event_lines, head_line, host_line, on_one_line
from gpuproof.observe.stream import Records, batches

Sources = Mapping[str, Records]
"""The records of each host, by host name."""
OTHER_LINES = 18
"""Screen lines needed in addition to each GPU's row and history: header, titles, host, some processes,
keys."""
DARK, LIGHT = "textual-dark", "textual-light"


class LiveView(App[None]):
    """The application: one thread per host reads records; the screen is drawn from host states."""

    TITLE = "gpuproof monitor live"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: $background; }
    #head { height: 1; background: $panel; }
    #overview, #detail { height: 1fr; }
    #detail { display: none; }
    .title { color: $text-muted; margin: 1 0 0 1; text-style: bold; }
    #models { height: 1; }
    #devices, #history, #hosts, #events, #processes { height: auto; }
    #hosts { margin: 1 0 0 0; }
    #filter { display: none; height: 3; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("space", "hold", "Hold"),
        Binding("escape", "overview", "All"),
        *(Binding(str(n), f"detail({n})", "One GPU", key_display="0–9", show=n == 0) for n in range(10)),
        Binding("h", "host", "Host"),
        Binding("s", "sort", "Sort"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("t", "toggle_light", "Light"),
        Binding("question_mark", "help", "Help", key_display="?"),
    ]

    def __init__(self, sources: Sources) -> None:
        super().__init__()
        self.states = {host: LiveState() for host in sources}
        self.failures: dict[str, GpuproofError] = {}
        """Host → why reading from it stopped."""
        self._sources = sources
        self._host: str | None = None
        self._chosen: int | None = None
        self._order = 0
        self._containing = ""
        self._held = False

    @property
    def failure(self) -> GpuproofError | None:
        """Why nothing is left to show, for the caller to raise; None while any host is being read."""
        is_over = len(self.failures) == len(self.states)
        return next(iter(self.failures.values()), None) if is_over else None

    def compose(self) -> ComposeResult:
        """Lay out the screen."""
        yield Static(id="head")
        with VerticalScroll(id="overview"):
            yield Static(id="models")
            yield Static(id="devices")
            yield Static(id="history")
            yield Static("Driver events", classes="title", id="events-title")
            yield Static(id="events")
            yield Static(id="hosts")
            yield Static("Processes", classes="title", id="processes-title")
            yield Static(id="processes")
        with VerticalScroll(id="detail"):
            yield Static(id="one")
        yield Input(id="filter", placeholder="part of a command, user, job, pod or host")
        yield Footer()

    def on_mount(self) -> None:
        """Start reading."""
        for host, records in self._sources.items():
            self.run_worker(partial(self._read, host, records), name=host, thread=True, exit_on_error=False)
        self.query_one("#overview").focus()
        self._draw()

    def on_resize(self) -> None:
        """Adapt the display to the new terminal size."""
        self._draw()

    def _read(self, host: str, records: Records) -> None:
        worker = get_current_worker()
        with closing(batches(records)) as incoming:
            for batch in incoming:
                if worker.is_cancelled:
                    return
                if batch:
                    self.call_from_thread(self._take, host, batch)
        self.call_from_thread(self._stop, host)

    def _take(self, host: str, batch: list[Any]) -> None:
        self.states[host].apply(batch)
        self._draw()

    def _stop(self, host: str) -> None:
        self.states[host].stopped = True
        self._draw()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Exit with the reason if reading fails for all hosts; a bug in gpuproof is not hidden."""
        if event.state is not WorkerState.ERROR:
            return
        error = event.worker.error
        if not isinstance(error, GpuproofError):
            raise error or RuntimeError("the reader failed without an error")
        self.failures[event.worker.name] = error
        if self.failure is not None:
            self.exit()
        self._draw()

    @property
    def _shown(self) -> dict[str, LiveState]:
        """Return the host shown, or all hosts."""
        return {h: state for h, state in self.states.items() if self._host in (None, h)}

    def _draw(self) -> None:
        if self._held:
            return
        width, shown = self.size.width, self._shown
        events = event_lines(shown)
        order = ORDERS[self._order]
        contents: dict[str, RenderableType] = {
            "#head": head_line(shown),
            "#models": models(shown),
            "#devices": device_table(shown, width=width - 2),
            "#events": events,
            "#hosts": self._host_lines(shown, width - 2),
            "#processes": process_table(shown, width=width - 2, order=order, containing=self._containing),
            "#processes-title": f"Processes by {order}"
            + (f", containing {self._containing!r}" * bool(self._containing)),
        }
        num_gpus = sum(len(state.devices) for state in shown.values())
        room = self.size.height - OTHER_LINES - num_gpus - events.plain.count("\n")
        contents["#history"] = history_charts(shown, width=width - 2, height=room)
        for place, content in contents.items():
            self.query_one(place, Static).update(content)
        for place in ("#events", "#events-title"):
            self.query_one(place).display = bool(events)
        device = self._device(self._chosen)
        if device is not None:
            self.query_one("#one", Static).update(device_detail(device, width=width - 2))

    def _host_lines(self, shown: Mapping[str, LiveState], width: int) -> RenderableType:
        lines = [
            host_line(state, width=width, name=host if len(self.states) > 1 else "host")
            for host, state in shown.items()
            if host not in self.failures
        ]
        lost = [
            Text(f" ✗ {on_one_line(host)}: {on_one_line(self.failures[host].cause)}", style=BAD)
            for host in shown
            if host in self.failures
        ]
        return Group(*lost, *lines)

    def _device(self, index: int | None) -> DeviceState | None:
        """Return a GPU of the shown host, or None with several hosts, where an index is ambiguous."""
        shown = self._shown
        if index is None or len(shown) != 1:
            return None
        return next(iter(shown.values())).devices.get(index)

    def action_detail(self, index: int) -> None:
        """Show the details of the GPU with this physical index."""
        if len(self._shown) != 1:
            self.notify("Choose a host first, with h", severity="warning")
            return
        if self._device(index) is None:
            self.notify(f"GPU {index} does not exist", severity="warning")
            return
        self._chosen = index
        self._show(detail=True)

    def action_overview(self) -> None:
        """Go back from one GPU to all, then from one host to all, and clear the filter."""
        if self._chosen is None:
            self._host = None
        self._chosen, self._containing = None, ""
        self._close_filter()
        self._show(detail=False)

    def action_host(self) -> None:
        """Show only the next host; after the last one, show all hosts."""
        hosts = [None, *self.states]
        self._host = hosts[(hosts.index(self._host) + 1) % len(hosts)]
        self._chosen = None
        self._show(detail=False)

    def action_sort(self) -> None:
        """Sort the processes by the next sort key."""
        self._order = (self._order + 1) % len(ORDERS)
        self._draw()

    def action_filter(self) -> None:
        """Prompt for the text to filter processes by."""
        place = self.query_one("#filter", Input)
        place.display = True
        place.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show processes that match what was typed so far."""
        self._containing = event.value
        self._draw()

    def on_input_submitted(self) -> None:
        """Keep the filter and return to the screen."""
        containing = self._containing
        self._close_filter()
        self._containing = containing

    def _close_filter(self) -> None:
        place = self.query_one("#filter", Input)
        place.display = False
        self.query_one("#overview").focus()

    def action_toggle_light(self) -> None:
        """Toggle between dark and light mode."""
        self.theme = DARK if self.theme == LIGHT else LIGHT

    def action_help(self) -> None:
        """Show or hide what each key does."""
        if self.screen.query("HelpPanel"):
            self.action_hide_help_panel()
        else:
            self.action_show_help_panel()

    def action_hold(self) -> None:
        """Pause the screen, or resume it."""
        self._held = not self._held
        self.notify("Paused; readings continue" if self._held else "Live again")
        self._draw()

    def _show(self, *, detail: bool) -> None:
        self.query_one("#overview").display = not detail
        self.query_one("#detail").display = detail
        self._draw()


def run_live(sources: Sources) -> None:
    """Show the records of hosts in the terminal until the user quits.

    Raises:
        GpuproofError: reading from all hosts failed.
    """
    view = LiveView(sources)
    view.run()
    if view.failure is not None:
        raise view.failure
