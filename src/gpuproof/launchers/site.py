"""Where a run's launches are executed; a site opens a launcher, from options or from run.json.

A site imports nothing heavy and opens no connections; launchers do that.
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
    """The name of the site's launcher."""
    is_here: ClassVar[bool] = False
    """Whether the site is this machine."""
    reads_ranks: ClassVar[bool] = True
    """Whether `gpuproof run` may be one of several ranks started by the user's own launcher."""
    libraries: ClassVar[Mapping[str, str]] = {}
    """Modules required on this machine → the extra of gpuproof that installs them."""
    starts: ClassVar[str] = "commands"
    """What `shown` contains, in one word."""
    can_sample: ClassVar[bool] = False
    """Whether the site's hosts can be monitored without a launch on them."""

    @classmethod
    @abstractmethod
    def chosen(cls, choice: HostChoice, *, python: str | None) -> Self:
        """Read the options; `python` runs the ranks unless a host specifies otherwise.

        Raises:
            UsageError: a file is wrong, or requests something that is impossible at this site.
            EnvironmentUnfitError: a scheduler does not report which hosts there are.
        """

    @classmethod
    @abstractmethod
    def recorded(cls, run: RunDirectory, choice: HostChoice, *, python: str | None) -> Self:
        """Read back what `described` wrote to run.json; an options file replaces it.

        Raises:
            UsageError: the file is invalid.
            RecordError: run.json is damaged.
        """

    @classmethod
    def device_numbers(cls, choice: HostChoice) -> Sequence[int | None]:
        """Return the number of devices on each named host, if a file specifies it."""
        del choice
        return ()

    @classmethod
    def enter(
        cls, choice: HostChoice, *, python: str | None, dry_run: bool, ranks_per_host: int, device: str
    ) -> str | None:
        """If hosts must be reserved first, reserve them and run this same command again on them.

        With `dry_run`, return the command that would do so; None if nothing needs to be reserved.
        """
        del choice, python, dry_run, ranks_per_host, device
        return None

    def words(self, choice: HostChoice) -> list[str]:
        """Return the config overrides implied by the choice of site."""
        del choice
        return []

    def facts(self, choice: HostChoice) -> Facts:
        """Return the site facts that recipe rules may use."""
        del choice
        return Facts(hosts=None)

    @abstractmethod
    def places(self) -> Sequence[HostPlace]:
        """Return the site's hosts; none if a scheduler chooses them."""

    @property
    @abstractmethod
    def text(self) -> str:
        """Describe the location as text."""

    def missing(self) -> Iterator[str]:
        """Yield what is required on this machine but missing, with how to fix it; opens no connections."""
        for module, extra in self.libraries.items():
            if find_spec(module) is None:
                yield f"{module} is not installed here: pip install 'gpuproof[{extra}]'"

    @abstractmethod
    def described(self) -> dict[str, Any]:
        """Return the run.json keys needed to find the run again."""

    def follow(self, config: RunConfig) -> None:
        """If this process should be a rank in another process's run, become one; otherwise do nothing."""
        del config

    @abstractmethod
    def shown(self, cases: Iterable[Case], run: Path) -> Iterable[str]:
        """Yield, as text, what would be started for the cases."""

    @abstractmethod
    def opened(
        self, *, environment: Mapping[str, str], many_launches: bool
    ) -> AbstractContextManager[Launcher]:
        """Yield the site's launcher; it is closed at the end.

        Raises:
            ImportError: a required library is not installed.
        """

    def sampled(self, words: Sequence[str]) -> AbstractContextManager[dict[str, Records]]:
        """Yield the records from a sampler on each host; samplers start on first use."""
        raise NotImplementedError
