"""Plots of a run over time: step times and readings of devices or the host, on one axis.

In: a run's evidence. Out: one plot per host, and the distribution of step times. Each point drawn is a record
or a reading, or the lowest, middle or highest of those that overlap. Launches are placed at their actual
times; long pauses between them are shortened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gpuproof.base.groups import grouped
from gpuproof.base.spans import merged
from gpuproof.observe.timeline import PIECES, description, line_of, recording_picture
from gpuproof.readings.evidence import Evidence, MissingReadings
from gpuproof.readings.recording import Floats, RecordingData
from gpuproof.records.collected import CaseRecords
from gpuproof.records.page import Axis, Chart, Picture, Series, Shade
from gpuproof.records.readings import bare_uuid, named_among
from gpuproof.records.run import RankResult, Start
from gpuproof.verdict.page import plain_chart
from gpuproof.verdict.rollup import listed

MOST_HOSTS: Final = 4
MOST_LAUNCHES: Final = 64
"""Maximum number of hosts and of launches; if either is exceeded, nothing is drawn, and `gpuproof monitor
plot` shows the readings of one launch."""
LONGEST_PAUSE_S: Final = 30.0
FAR: Final = 5.0
"""Ratio of the longest to the shortest step at which the longest would flatten the others, so a logarithmic
scale is used."""
LEAST_PIECES: Final = 60
"""Maximum points per line of one launch, regardless of the number of launches."""
MOST_BINS: Final = 60
MOST_APART: Final = 8
"""Maximum number of launches with separately drawn step times."""
THROTTLED: Final = "#f5a524"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLaunch:
    """Data of one host in one launch. Times are on the host's clock; add `shift_s` for the run's timeline."""

    name: str
    begin_s: float
    end_s: float
    """Start and end of the window, or of the whole launch if there is no window."""
    shift_s: float
    step_times_s: Sequence[float]
    """Step times of the host's slowest rank."""
    uuids: frozenset[str]
    """UUIDs of the devices used."""
    recording: RecordingData | MissingReadings


def run_pictures(evidence: Evidence) -> tuple[Picture | Chart, ...]:
    """Return a run over time: one plot per host, and step distributions; none for many launches."""
    launches = [launch for launch in evidence.launches if launch.of(Start)]
    hosts = {start.host for launch in launches for start in launch.of(Start)}
    if len(hosts) > MOST_HOSTS or len(launches) > MOST_LAUNCHES:
        return ()
    pictures: list[Picture | Chart] = []
    num_of_case = Counter(launch.case.case_id for launch in launches)
    for host in sorted(hosts):
        on_host = [
            _host_launch(evidence, launch, host, _name(launch, num_of_case))
            for launch in launches
            if any(start.host == host for start in launch.of(Start))
        ]
        picture = _over_time(_without_pauses(on_host), f"Over time{f', {host}' * (len(hosts) > 1)}")
        pictures += [picture] if picture.charts else []
        if len(num_of_case) == len(hosts) == 1:
            pictures += _spread(on_host)
    return tuple(pictures)


def _name(launch: CaseRecords, num_of_case: Mapping[str, int]) -> str:
    number, case = f"launch {launch.case.replicate + 1}", launch.case.case_id
    if len(num_of_case) == 1:
        return number
    return case if num_of_case[case] == 1 else f"{case}, {number}"


def _host_launch(evidence: Evidence, launch: CaseRecords, host: str, name: str) -> HostLaunch:
    starts = {start.rank: start for start in launch.of(Start) if start.host == host}
    windows = [window for window in launch.windows if window.rank in starts]
    slowest = max(windows, key=lambda window: window.wall_s, default=None)
    begin_s = min(start.monotonic_s for start in starts.values())
    ends = [end.monotonic_s for end in launch.of(RankResult) if end.rank in starts]
    first = next(iter(starts.values()))
    uuids = [setup.device.uuid for setup in launch.setups if setup.rank in starts]
    return HostLaunch(
        name=name,
        begin_s=begin_s if slowest is None else slowest.begin_monotonic_s,
        end_s=max([begin_s, *ends]) if slowest is None else slowest.end_monotonic_s,
        shift_s=first.unix_s - first.monotonic_s,
        step_times_s=() if slowest is None else launch.step_times_s(slowest.rank),
        uuids=frozenset(bare_uuid(uuid) for uuid in uuids if uuid is not None),
        recording=evidence.recording(launch.case, host),
    )


def _without_pauses(launches: Sequence[HostLaunch]) -> list[HostLaunch]:
    """Shift launches so that the first starts at 0 and pauses between launches are short."""
    moved: list[HostLaunch] = []
    last_s, shift_s = None, 0.0
    for launch in sorted(launches, key=lambda one: one.begin_s + one.shift_s):
        begin_s, end_s = (at + launch.shift_s for at in _ends(launch))
        if last_s is None:
            shift_s = -begin_s
        elif begin_s + shift_s - last_s > LONGEST_PAUSE_S:
            shift_s = last_s + LONGEST_PAUSE_S - begin_s
        moved.append(replace(launch, shift_s=launch.shift_s + shift_s))
        last_s = max(last_s or 0.0, end_s + shift_s)
    return moved


def _ends(launch: HostLaunch) -> tuple[float, float]:
    """Return when a launch or its monitoring started and stopped, on the host's clock."""
    recording = launch.recording
    if isinstance(recording, MissingReadings) or not len(recording.time_s):
        return launch.begin_s, launch.end_s
    times = recording.time_s + recording.recording.monotonic_s
    return min(launch.begin_s, float(times[0])), max(launch.end_s, float(times[-1]))


def _over_time(launches: Sequence[HostLaunch], title: str) -> Picture:
    """Return step times above the readings; windows and throttling are shaded."""
    end_s = max(_ends(one)[1] + one.shift_s for one in launches)
    axis = Axis(label="time since the first launch started", unit="s", reach=(0.0, end_s))
    steps, readings = _step_chart(launches), _reading_charts(launches)
    throttled = merged(s for x in readings if x.y.names for one in x.series for s in one.ranges)
    shades = (
        *(Shade(name=x.name, begin=x.begin_s + x.shift_s, end=x.end_s + x.shift_s) for x in launches),
        *(Shade(name="throttled", begin=begin, end=end, colour=THROTTLED) for begin, end in throttled),
    )
    missing = grouped(
        (x.recording.reason, x.name) for x in launches if isinstance(x.recording, MissingReadings)
    )
    parts = [
        *(description(_used(x, end_s=end_s)) for x in launches[:1] if isinstance(x.recording, RecordingData)),
        "windows of launches are shaded" + ", and throttling of any GPU" * bool(throttled),
        *([] if steps else ["step times were not stored"]),
        *(
            f"no readings{'' if len(names) == len(launches) else f' of {listed(names)}'}: {reason}"
            for reason, names in missing.items()
        ),
    ]
    charts = tuple(replace(chart, x=axis, shades=shades) for chart in [*steps, *readings])
    return Picture(title=title, subtitle="  ·  ".join(parts), charts=charts)


def _reading_charts(launches: Sequence[HostLaunch]) -> list[Chart]:
    """Return the readings of all launches, one chart per metric; strips of rows count as charts."""
    charts: dict[str, Chart] = {}
    for launch in launches:
        if isinstance(launch.recording, MissingReadings):
            continue
        shift_s = launch.recording.recording.monotonic_s + launch.shift_s
        pieces = max(LEAST_PIECES, PIECES // len(launches))
        for chart in recording_picture(_used(launch), pieces=pieces).charts:
            key = "strip" if chart.y.names else chart.y.label
            charts[key] = _together(charts.get(key), _later(chart, shift_s))
    return list(charts.values())


def _used(launch: HostLaunch, *, end_s: float | None = None) -> RecordingData:
    """Return a launch's readings for the devices it used; `end_s` is when the last launch ends."""
    recording = launch.recording
    assert isinstance(recording, RecordingData)
    places = named_among(launch.uuids, [track.identity.uuid for track in recording.devices])
    devices = tuple(recording.devices[place] for place in sorted(places))
    times = recording.time_s if end_s is None else np.array([0.0, end_s])
    return replace(recording, devices=devices, time_s=times, marks=())


def _later(chart: Chart, by_s: float) -> Chart:
    def moved(series: Series) -> Series:
        points = tuple((x + by_s, y) for x, y in series.points)
        is_along = series.form == "range"
        ranges = (
            tuple((begin + by_s, end + by_s) for begin, end in series.ranges) if is_along else series.ranges
        )
        return replace(series, points=points, ranges=ranges)

    lines = (line if line.x is None else replace(line, x=line.x + by_s) for line in chart.references)
    return replace(chart, series=tuple(map(moved, chart.series)), references=tuple(lines))


def _together(before: Chart | None, chart: Chart) -> Chart:
    if before is None:
        return chart
    y = max(before.y, chart.y, key=lambda axis: len(axis.label))
    return replace(
        before,
        y=replace(y, reach=(*before.y.reach, *chart.y.reach)),
        series=(*before.series, *chart.series),
        references=tuple(dict.fromkeys((*before.references, *chart.references))),
    )


def _step_chart(launches: Sequence[HostLaunch]) -> list[Chart]:
    timed = [launch for launch in launches if launch.step_times_s]
    if not timed:
        return []
    times_s = [time_s for launch in timed for time_s in launch.step_times_s]
    pieces = max(LEAST_PIECES, PIECES // len(timed))
    lines = (line_of("step", *_steps_in_time(launch), pieces=pieces) for launch in timed)
    is_far = max(times_s) > FAR * min(times_s) > 0
    x, y = Axis(label="", unit="s"), Axis(label="Step time", unit="s", is_logarithmic=is_far)
    return [plain_chart("", "line", x, y, (series for line in lines for series in line))]


def _steps_in_time(launch: HostLaunch) -> tuple[Floats, Floats]:
    """Return when each step ended and how long it took; gaps are distributed evenly."""
    steps_s = np.array(launch.step_times_s)
    between_s = (launch.end_s - launch.begin_s - steps_s.sum()) / len(steps_s)
    return launch.begin_s + launch.shift_s + np.cumsum(steps_s + between_s), steps_s


def _spread(launches: Sequence[HostLaunch]) -> list[Chart]:
    """Return the distribution of step times, per launch if there are only a few."""
    times_s = {one.name: np.array(one.step_times_s) for one in launches if one.step_times_s}
    if not times_s:
        return []
    pooled = np.concatenate(list(times_s.values()))
    low, high = float(pooled.min()), float(pooled.max())
    if low == high:
        return []
    is_far = high > FAR * low > 0
    num = min(MOST_BINS, max(8, int(len(pooled) ** 0.5)))
    edges = (np.geomspace if is_far else np.linspace)(low, high, num + 1)
    middles = (edges[1:] * edges[:-1]) ** 0.5 if is_far else (edges[1:] + edges[:-1]) / 2
    apart = times_s if 1 < len(times_s) <= MOST_APART else {"steps": pooled}
    series = [
        Series(name=name, points=tuple((float(x), float(y)) for x, y in zip(middles, counts, strict=True)))
        for name, values in apart.items()
        for counts in [np.histogram(values, edges)[0]]
    ]
    x = Axis(label="step time", unit="s", is_logarithmic=is_far, reach=(low, high))
    chart = plain_chart("How step times are distributed", "bar", x, Axis(label="steps"), series)
    return [replace(chart, is_stacked=True)]
