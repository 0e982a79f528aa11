"""Where the launches of a run take place: what a launcher is opened with, from options or from run.json.

A site loads nothing heavy: that is for launchers. It connects to nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from gpuproof.config.models import RunConfig
from gpuproof.config.rules.base import Facts
from gpuproof.launchers.base import Launcher
from gpuproof.launchers.registry import HostChoice
from gpuproof.records.case import Case
from gpuproof.store.run import RunDirectory
from gpuproof.suites.base import HostPlace

if TYPE_CHECKING:
    from gpuproof.observe.stream import Records


class LaunchSite(ABC):
    """This machine, hosts, or a cluster."""

    launcher: ClassVar[str]
    """The name of its launcher."""
    is_here: ClassVar[bool] = False
    """Whether it is this machine."""
    reads_ranks: ClassVar[bool] = True
    """Whether `gpuproof run` may be one of several ranks that a launcher of the user's started."""
    libraries: ClassVar[Mapping[str, str]] = {}
    """Modules that it needs on this machine → the extra of gpuproof that installs each."""
    starts: ClassVar[str] = "commands"
    """What `shown` shows, in a word."""
    can_sample: ClassVar[bool] = False
    """Whether its hosts can be watched without a launch on them."""

    @classmethod
    @abstractmethod
    def chosen(cls, choice: HostChoice, *, python: str | None) -> Self:
        """Read what the options name; `python` runs the ranks where no host says otherwise.

        Raises:
            UsageError: a file is wrong, or something is asked for that cannot be had there.
            EnvironmentUnfitError: a scheduler does not say which hosts these are.
        """

    @classmethod
    @abstractmethod
    def recorded(cls, run: RunDirectory, choice: HostChoice, *, python: str | None) -> Self:
        """Read back what `described` wrote into run.json; a file of options takes its place.

        Raises:
            UsageError: the file is wrong.
            RecordError: run.json is damaged.
        """

    @classmethod
    def device_numbers(cls, choice: HostChoice) -> Sequence[int | None]:
        """Return the number of devices of each host that is named, as far as a file says it."""
        del choice
        return ()

    @classmethod
    def enter(
        cls, choice: HostChoice, *, python: str | None, dry_run: bool, ranks_per_host: int, device: str
    ) -> str | None:
        """Go on as this same command where its hosts are reserved, if that has to be done before.

        Return, with `dry_run`, the command that would be; None where nothing is to be reserved.
        """
        del choice, python, dry_run, ranks_per_host, device
        return None

    def words(self, choice: HostChoice) -> list[str]:
        """Return the config words that the choice stands for."""
        del choice
        return []

    def facts(self, choice: HostChoice) -> Facts:
        """Return what the rules of a recipe may know of it."""
        del choice
        return Facts(hosts=None)

    @abstractmethod
    def places(self) -> Sequence[HostPlace]:
        """Return its hosts; none where a scheduler chooses."""

    @property
    @abstractmethod
    def text(self) -> str:
        """Where it is, in words."""

    def missing(self) -> Iterator[str]:
        """Yield what it needs on this machine and is not there, with what to do; it connects to nothing."""
        for module, extra in self.libraries.items():
            if find_spec(module) is None:
                yield f"{module} is not installed here: pip install 'gpuproof[{extra}]'"

    @abstractmethod
    def described(self) -> dict[str, Any]:
        """Return the keys of run.json by which the run is found again."""

    def follow(self, config: RunConfig) -> None:
        """Become a rank of another process's run, where this process is to be one; else do nothing."""
        del config

    @abstractmethod
    def shown(self, cases: Iterable[Case], run: Path) -> Iterable[str]:
        """Yield what would be started for the cases, as text."""

    @abstractmethod
    def opened(
        self, *, environment: Mapping[str, str], many_launches: bool
    ) -> AbstractContextManager[Launcher]:
        """Give its launcher, closed in the end.

        Raises:
            ImportError: a library that it needs is not installed.
        """

    def sampled(self, words: Sequence[str]) -> AbstractContextManager[dict[str, Records]]:
        """Give the records of a sampler on each host, started when they are first asked for."""
        raise NotImplementedError
