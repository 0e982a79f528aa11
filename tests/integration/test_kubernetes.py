"""`--on kubernetes` over real HTTP with the official client: pods that run, fail, go, or never begin."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpuproof.base.errors import EnvironmentUnfitError, ExitCode, GpuproofError
from gpuproof.campaign.campaign import create_run
from gpuproof.config.load import load_config
from gpuproof.launchers.base import Launched, Launcher
from gpuproof.launchers.kubernetes.manifests import launch_name
from gpuproof.launchers.kubernetes.options import KubernetesOptions
from gpuproof.launchers.kubernetes.site import KubernetesSite
from gpuproof.launchers.registry import open_launcher
from gpuproof.records.case import Case
from gpuproof.records.run import Failure
from gpuproof.store.run import read_case
from gpuproof.suites.cases import build_case
from kubernetes_world import World, kubeconfig, kubernetes_world
from launching import finish, wait_until
from ports import free_ports
from running import LIGHT, gpuproof, run_directory

TINY = (
    *("--model.name=medium", "--data.name=synthetic", "--data.batch_size=4", "--run.commit_hash=null"),
    *("--benchmark.warmup_steps=1", "--benchmark.measure_by=steps", "--benchmark.measure_steps=5"),
    *("--distributed.device=cpu", "--distributed.threads_per_rank=1", "--run.repeats=1"),
    *LIGHT,
)
AGENT = Path(__file__).parents[1] / "fakes" / "agent.py"
TWO_NODES = ("--distributed.nodes=2", "--monitoring.enabled=false")
WAITING = {"phase": "Pending"}


@pytest.fixture
def there(tmp_path: Path) -> Iterator[tuple[World, dict[str, str]]]:
    with kubernetes_world(tmp_path / "cluster") as (world, environment):
        yield world, {**os.environ, **environment}
        assert world.left() == []


Start = Callable[..., tuple[Launched, Path]]


@pytest.fixture
def launcher(there: tuple[World, dict[str, str]], options: KubernetesOptions) -> Iterator[Launcher]:
    with open_launcher(KubernetesSite(options=options), environment=there[1]) as opened:
        yield opened


@pytest.fixture
def options() -> KubernetesOptions:
    return KubernetesOptions()


CaseIn = Callable[..., tuple[Case, Path]]


@pytest.fixture
def case_in(tmp_path: Path) -> CaseIn:
    """Build a case, and the folder of its launch."""

    def built(*words: str) -> tuple[Case, Path]:
        named = (f"--run.save_dir='{tmp_path}'", "--run.experiment_name=quick", "--run.run_id=r1")
        loaded = load_config("quick", [*TINY, *named, *words])
        run = create_run(loaded.config, origins=loaded.origins, source=loaded.source)
        case = build_case(loaded.config, 0)
        return case, run.begin_case(case)

    return built


@pytest.fixture
def start(launcher: Launcher, case_in: CaseIn) -> Start:
    def started(*words: str) -> tuple[Launched, Path]:
        case, folder = case_in(*words)
        return launcher.start(case, (), folder), folder

    return started


def only_failure(folder: Path) -> Failure:
    (failure,) = [told for told in read_case(folder).of(Failure) if told.rank is None]
    return failure


@pytest.mark.parametrize("options", [KubernetesOptions(engine="pytorchjob")])
def test_two_pods_train_as_one_job_and_nothing_is_left(
    there: tuple[World, dict[str, str]], launcher: Launcher, start: Start
) -> None:
    """Of a PyTorchJob, which leaves most in the environment of ranks: their number, and where others meet."""
    world, _ = there
    launched, folder = start("--distributed.nodes=2", "--kind=training")
    assert finish(launcher, launched) == 0
    records = read_case(folder)
    assert (records.status, records.world_size) == ("done", 2)
    assert [body["kind"] for body in world.seen] == ["ConfigMap", "PyTorchJob"]
    assert {"spec.json", "rank-0.jsonl", "rank-1.jsonl"} <= {path.name for path in folder.iterdir()}
    assert not list(folder.glob("task-*"))


def engine_options(name: str, folder: Path) -> KubernetesOptions:
    """Return options for an engine; on a claim nothing is fetched, and a pod that fails is over at once."""
    engine, _, place = name.partition(" ")
    claim = {"claim": "results", "claim_folder": str(folder)} if place else {}
    return KubernetesOptions.model_validate({"engine": engine, **claim})


@pytest.fixture
def act(there: tuple[World, dict[str, str]], tmp_path: Path) -> Iterator[Callable[[str, str], Launcher]]:
    """Open a launcher for an engine, where a script that does as it is told stands for torch's agent."""
    there[0].agent = AGENT
    with ExitStack() as stack:

        def opened(engine: str, told: str) -> Launcher:
            variables = {"ACT": told, "MEET": str(tmp_path / "meet")}
            options = engine_options(engine, tmp_path).model_copy(update={"env": variables})
            return stack.enter_context(open_launcher(KubernetesSite(options=options), environment=there[1]))

        yield opened


Act = Callable[[str, str], Launcher]


OTHERS = {"job": ["ConfigMap", "Service"], "jobset": ["ConfigMap"], "trainjob on a claim": []}


@pytest.mark.parametrize("engine", OTHERS)
def test_each_engine_tells_its_pods_who_they_are_and_goes_when_they_have_ended(
    there: tuple[World, dict[str, str]], act: Act, case_in: CaseIn, engine: str
) -> None:
    launcher = act(engine, "done")
    case, folder = case_in(*TWO_NODES)
    launched = launcher.start(case, (), folder)
    assert finish(launcher, launched) == 0
    for rank in (0, 1):
        told = json.loads((folder / f"told-{rank}.json").read_text())
        assert told["words"]["node-rank"] == str(rank)
        assert told["words"]["master-addr"] == "127.0.0.1"  # the name that this controller gives pod 0
        assert told["words"]["nnodes"] == "2"
    assert launched.placed is not None
    assert launched.placed.hosts == ("node-0", "node-1")
    assert not read_case(folder).of(Failure)
    *others, starting = there[0].seen
    owners = [body["metadata"]["ownerReferences"][0]["uid"] for body in others]
    assert set(owners) <= {starting["metadata"]["uid"]}  # the rest goes with it, whatever becomes of gpuproof
    assert [body["kind"] for body in others] == OTHERS[engine]


@pytest.mark.parametrize(
    "engine", ["job on a claim", "jobset", "trainjob on a claim", "pytorchjob on a claim"]
)
def test_a_node_that_fails_ends_the_others_with_their_last_words_and_is_not_taken_for_lost(
    there: tuple[World, dict[str, str]], act: Act, case_in: CaseIn, engine: str
) -> None:
    """Job, JobSet and TrainJob delete what is left once a pod has failed: that is no loss of its own."""
    launcher = act(engine, "fail:1")
    case, folder = case_in(*TWO_NODES)
    launched = launcher.start(case, (), folder)
    assert finish(launcher, launched) > 0
    assert [told.message for told in read_case(folder).of(Failure)] == []  # its ranks know why
    assert (folder / "last-words-0").read_text() == "told to end"
    assert (folder / "told-1.json").exists()


def test_a_pod_that_was_evicted_is_an_interruption_and_the_others_say_their_last_words(
    there: tuple[World, dict[str, str]], act: Act, case_in: CaseIn
) -> None:
    launcher = act("job", "fail:none")
    case, folder = case_in(*TWO_NODES)
    launched = launcher.start(case, (), folder)
    wait_until(launcher, "its begin", lambda: launched.placed is not None)
    world, _ = there
    wait_until(launcher, "both nodes", lambda: len(list(world.folder.rglob("told-*.json"))) == 2)
    world.evict(1, "The node was low on resource: memory.")
    assert finish(launcher, launched) > 0
    failure = only_failure(folder)
    assert failure.cause == "interrupted"
    assert "Evicted: The node was low on resource: memory." in failure.message
    assert (failure.host, failure.next_step) == ("node-1", "Finish the run with --resume")
    assert (folder / "last-words-0").exists()  # pod 0, which its Job deleted, kept its files for us


@pytest.mark.parametrize("engine", ["jobset on a claim"])
def test_a_launch_that_took_too_long_says_so_in_the_cluster_s_words(
    there: tuple[World, dict[str, str]], act: Act, case_in: CaseIn, tmp_path: Path, engine: str
) -> None:
    launcher = act(engine, "fail:none")
    case, folder = case_in(*TWO_NODES)
    launched = launcher.start(case, (), folder)
    world, _ = there
    wait_until(launcher, "its begin", lambda: launched.placed is not None)
    wait_until(launcher, "both nodes", lambda: len(list(tmp_path.rglob("told-*.json"))) == 2)
    world.expire()
    assert finish(launcher, launched) > 0
    failure = only_failure(folder)
    assert (failure.cause, "active_deadline_s" in str(failure.next_step)) == ("interrupted", True)
    assert "Job was active longer than specified deadline" in failure.message
    assert (folder / "last-words-0").exists()


BAD = {
    "image": (
        {**WAITING, "containerStatuses": [{"name": "pytorch", "state": {"waiting": {
            "reason": "ImagePullBackOff", "message": 'Back-off pulling image "nvcr.io/x"'}}}]},
        "cannot start: ImagePullBackOff: Back-off pulling image",
        "Check image and pull_secrets",
    ),
    "unschedulable": (
        {**WAITING, "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                                    "message": "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."}]},
        "has not started within 0.2 s: gpuproof-r1",
        "Raise pending_limit_s",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("options", [KubernetesOptions(pending_limit_s=0.2)])
def test_pods_that_never_begin_are_given_up_in_the_cluster_s_words(
    there: tuple[World, dict[str, str]], launcher: Launcher, start: Start, name: str
) -> None:
    world, _ = there
    status, message, next_step = BAD[name]
    world.pod_fault = status
    launched, folder = start()
    assert finish(launcher, launched) > 0
    failure = only_failure(folder)
    assert failure.cause == "environment"
    assert message in failure.message
    said = json.dumps(status)
    assert failure.message.rpartition(": ")[2].split('"')[0].strip() in said
    assert next_step in str(failure.next_step)


@pytest.mark.parametrize(
    "options",
    [KubernetesOptions(pending_limit_s=0.2), KubernetesOptions(pending_limit_s=0.2, engine="jobset")],
)
def test_a_quota_is_told_in_the_cluster_s_words(
    there: tuple[World, dict[str, str]], launcher: Launcher, start: Start
) -> None:
    world, _ = there
    quota = "pods is forbidden: exceeded quota: gpus, requested: nvidia.com/gpu=1, used: 8, limited: 8"
    world.quota = quota
    launched, folder = start()
    assert finish(launcher, launched) > 0
    assert quota in only_failure(folder).message
    assert "FailedCreate" in only_failure(folder).message


REFUSALS = {
    ("POST", "jobs"): (403, 'jobs.batch is forbidden: User "me" cannot create', "kubectl auth can-i --list"),
    ("POST", "configmaps"): (403, "exceeded quota: objects", "kubectl describe resourcequota"),
    ("POST", "jobs "): (422, "spec.template: Invalid value", "--dry-run"),
    ("POST", "jobs  "): (500, "etcdserver: request timed out", "/readyz"),
}


@pytest.mark.parametrize("asked", REFUSALS)
def test_what_the_cluster_refuses_is_told_and_nothing_is_left(
    there: tuple[World, dict[str, str]], launcher: Launcher, start: Start, asked: tuple[str, str]
) -> None:
    world, _ = there
    status, message, next_step = REFUSALS[asked]
    world.refusals[asked[0], asked[1].strip()] = (status, message)
    launched, _ = start()
    with pytest.raises(GpuproofError) as told:
        wait_until(launcher, "the refusal", lambda: False)
    assert next_step in str(told.value)
    assert message in str(told.value) or status == 500
    assert launched.is_over
    assert world.left() == []


def test_a_name_that_is_taken_is_told_and_its_owner_left_alone(
    there: tuple[World, dict[str, str]], launcher: Launcher, start: Start, tmp_path: Path
) -> None:
    world, _ = there
    loaded = load_config("quick", TINY)
    name = launch_name("r1", build_case(loaded.config, 0), of=f"{tmp_path}/quick/r1/0")
    world.makes_pods = False
    world.make("jobs", {"kind": "Job", "metadata": {"name": name, "labels": {}}})
    start()
    with pytest.raises(GpuproofError, match="already exists") as told:
        wait_until(launcher, "the refusal", lambda: False)
    assert "--resume" in str(told.value.next_step)
    assert world.left() == [f"jobs/{name}"]
    world.objects.clear()


def test_without_a_way_to_a_cluster_that_is_said(tmp_path: Path) -> None:
    nobody = kubeconfig(tmp_path / "a", f"http://127.0.0.1:{free_ports()}")
    for file, cause in ((tmp_path / "none", "no access to a cluster"), (nobody, "does not respond")):
        with pytest.raises(EnvironmentUnfitError, match=cause) as told:
            open_launcher(KubernetesSite(), environment={"KUBECONFIG": str(file)}).__enter__()
        assert told.value.next_step


def test_the_command_runs_a_case_and_the_dry_run_sends_nothing(
    there: tuple[World, dict[str, str]], tmp_path: Path
) -> None:
    world, environment = there
    words = ("run", "quick", *TINY, "--run.run_id=r1", "--on", "kubernetes")
    shown = gpuproof(*words, "--dry-run", "--verbose", cwd=tmp_path, environment=environment)
    reason_against, manifests = shown.stdout.split("\n", 1)
    assert reason_against.startswith(
        "# For inspection, not to apply: gpuproof-node.pyz is empty here, and nothing"
    )
    assert manifests.startswith("---\napiVersion: v1\nkind: ConfigMap"), shown.stderr
    assert world.calls == []
    ran = gpuproof(*words, cwd=tmp_path, environment=environment)
    assert ran.returncode in (ExitCode.DONE, ExitCode.INCONCLUSIVE), ran.stderr
    assert run_directory(tmp_path, "r1").cases()[0].status == "done"


def test_the_roles_allow_what_is_done_and_no_more(
    there: tuple[World, dict[str, str]], tmp_path: Path
) -> None:
    world, environment = there
    words = ("run", "quick", *TINY, *TWO_NODES, "--run.run_id=r1", "--on", "kubernetes")
    ran = gpuproof(*words, cwd=tmp_path, environment=environment)
    assert run_directory(tmp_path, "r1").cases()[0].status == "done", ran.stderr
    world.makes_pods = False  # why, events would say
    (tmp_path / "k.yaml").write_text("pending_limit_s: 1\n")
    asked = ("run", "quick", *TINY, "--run.run_id=r2", "--on", "kubernetes:k.yaml")
    assert gpuproof(*asked, cwd=tmp_path, environment=environment).returncode != ExitCode.DONE
    for command in ("verify", "clean"):
        gpuproof("kubernetes", command, cwd=tmp_path, environment=environment)
    # `create` is what newer clusters ask for where older ones ask for `get`
    assert world.allowed - world.used == {("pods/exec", "create")}


def gpu_node(name: str, spec: dict[str, object], *, usable: int = 8) -> dict[str, object]:
    status = {
        "conditions": [{"type": "Ready", "status": "True"}],
        "capacity": {"nvidia.com/gpu": "8"},
        "allocatable": {"nvidia.com/gpu": str(usable)},
    }
    return {"metadata": {"name": name, "labels": {"gpu": "h100"}}, "spec": spec, "status": status}


def test_a_cluster_is_verified_and_cleaned_and_a_dry_run_does_neither(
    there: tuple[World, dict[str, str]], tmp_path: Path
) -> None:
    world, environment = there
    tainted: dict[str, object] = {"taints": [{"key": "team", "effect": "NoSchedule"}]}
    world.nodes = [gpu_node("a", {}, usable=7), gpu_node("b", tainted)]
    labels = {"app.kubernetes.io/managed-by": "gpuproof"}
    world.makes_pods = False
    for kind, metadata in (("jobs", labels), ("configmaps", labels), ("services", {})):
        world.make(kind, {"kind": kind, "metadata": {"name": f"left-{kind}", "labels": metadata}})
    asked = gpuproof("kubernetes", "verify", "--dry-run", cwd=tmp_path, environment=environment)
    assert asked.stdout.splitlines() == ["GET /api/v1/namespaces/NAMESPACE/pods", "GET /api/v1/nodes"]
    assert world.calls == []
    shown = gpuproof("kubernetes", "verify", "--json", cwd=tmp_path, environment=environment)
    assert shown.returncode == ExitCode.DONE, shown.stderr
    statuses = {told["name"]: told["outcome"]["status"] for told in json.loads(shown.stdout)["checks"]}
    assert statuses == {"nodes": "PASS", "GPUs": "PASS", "healthy GPUs": "WARN", "placement": "PASS"}
    assert world.calls == [("GET", "pods"), ("GET", "nodes")]  # what the dry run says, and no more
    would = gpuproof("kubernetes", "clean", "--dry-run", cwd=tmp_path, environment=environment)
    assert would.stdout == "would remove Job left-jobs\nwould remove ConfigMap left-configmaps\n"
    assert len(world.left()) == 3
    assert gpuproof("kubernetes", "clean", cwd=tmp_path, environment=environment).returncode == 0
    assert world.left() == ["services/left-services"]
    world.objects.clear()
