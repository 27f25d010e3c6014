"""`resumable` in one process: when the function is called again, and when its error is the caller's."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import trainshed
from trainshed.checkpoint import in_place, interrupt
from trainshed.checkpoint.ranks import Ranks
from trainshed.checkpoint.save import SaveError, await_entries
from trainshed.contract.wire.in_place import LIFE, Word, fifo_of, line_of, open_fifo
from trainshed.contract.wire.variables import IN_PLACE, TRAIN_ID

pytestmark = pytest.mark.torch

PEER_GONE = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:40333"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where this process, rank 1 in the job's first life, may live on."""
    for name, value in ((IN_PLACE, str(tmp_path / "in-place")), (LIFE, "0"), ("RANK", "1"), ("MASTER_PORT", "7000")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(in_place, "WORD_SECONDS", 0.2)
    return str(tmp_path / "in-place")


def tell(folder: str, life: int = 0) -> None:
    fd = open_fifo(fifo_of(folder, 1, life))
    os.write(fd, line_of(Word({LIFE: str(life + 1), "MASTER_PORT": str(7001 + life)})))
    os.close(fd)


def lost(folder: str, *ends: Callable[[], object]) -> tuple[object, list[str]]:
    """The function ends so in each of its calls but the last, before which a rank was lost; its result, and its lives."""
    lives: list[str] = []

    @trainshed.resumable
    def train(word: str) -> str:
        life = len(lives)
        lives.append(f"{os.environ[LIFE]} at {os.environ['MASTER_PORT']}")
        if life < len(ends):
            tell(folder, life)
            ends[life]()
        return f"{word} {life}"

    return train("done"), lives


def fail(error: BaseException) -> Callable[[], object]:
    def end() -> None:
        raise error

    return end


def test_it_is_called_again_with_what_train_says(folder: str) -> None:
    result, lives = lost(folder, fail(RuntimeError(PEER_GONE)), fail(RuntimeError(PEER_GONE)))
    assert (result, lives) == ("done 2", ["0 at 7000", "1 at 7001", "2 at 7002"])
    assert not os.path.exists(fifo_of(folder, 1, 2))
    assert "trainshed-in-place" not in [thread.name for thread in threading.enumerate()]


def test_it_is_called_again_where_it_had_come_to_its_end(folder: str) -> None:
    assert lost(folder, lambda: None)[0] == "done 1"


def test_any_error_may_follow_from_a_loss(folder: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert lost(folder, fail(KeyError("grad")))[0] == "done 1"
    assert "resumable: a rank was lost, and the function ended by KeyError: 'grad'" in capfd.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_a_stop_is_the_callers_whatever_was_lost(folder: str, error: BaseException) -> None:
    with pytest.raises(type(error)):
        lost(folder, fail(error))
    assert not os.path.exists(fifo_of(folder, 1, 0))


@pytest.mark.parametrize("error", [RuntimeError(PEER_GONE), ValueError("bad batch"), RuntimeError("out of memory")])
def test_an_error_is_the_callers_where_no_rank_was_lost(folder: str, error: Exception) -> None:
    @trainshed.resumable
    def train() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        train()
    assert raised.value is error
    assert sorted(os.listdir(folder)) == ["rank1.0.begun", "rank1.0.failed"]


def test_only_errors_that_peers_cause_wait_for_the_word() -> None:
    causes = [
        RuntimeError(PEER_GONE),
        RuntimeError("NCCL communicator was aborted"),
        ConnectionResetError("Connection reset"),
    ]
    try:
        try:
            raise causes[0]
        except RuntimeError as error:
            raise ValueError("the step failed") from error
    except ValueError as error:
        causes.append(error)  # type: ignore[arg-type]
    assert all(map(in_place._may_come_from_a_peer, causes))
    assert not any(
        map(in_place._may_come_from_a_peer, [ValueError(PEER_GONE), RuntimeError("out of memory"), KeyError("x")])
    )


def test_generators_are_what_they_were_before_the_first_call(folder: str) -> None:
    import torch

    drawn: list[float] = []

    def draw() -> None:
        drawn.append(torch.rand(1).item())
        if len(drawn) == 1:
            tell(folder)

    trainshed.resumable(draw)()
    assert drawn == drawn[:1] * 2


def test_only_the_first_call_in_a_process_counts(folder: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert lost(folder)[0] == "done 0"
    assert trainshed.resumable(lambda: os.listdir(folder))() == ["rank1.0.begun"]
    assert "only the first call of a resumable function counts" in capfd.readouterr().err


def test_without_train_it_is_the_function(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    for name in (IN_PLACE, TRAIN_ID, "RANK"):
        monkeypatch.delenv(name, raising=False)
    assert trainshed.resumable(lambda: 7)() == 7
    monkeypatch.setenv(TRAIN_ID, "1-a")
    assert trainshed.resumable(lambda: 8)() == 8
    assert capfd.readouterr().err.count("resumable: a lost rank is not replaced in place here") == 1


def test_what_a_life_has_made_is_stale_in_the_next_one(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks()
    assert not ranks.stale
    monkeypatch.setenv(LIFE, "1")
    assert ranks.stale
    assert not Ranks().stale


def test_connections_among_ranks_are_cut_and_no_others(folder: str) -> None:
    """The server is another process; with one it shares a life, with the other nothing."""
    rank, stranger = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        stranger.close()
        taken, _ = rank.accept()
        taken.sendall(b"y")
        taken.recv(1)
        os._exit(0)
    port = rank.getsockname()[1]
    rank.close()
    with socket.create_connection(("127.0.0.1", port)) as ours, socket.create_connection(stranger.getsockname()) as other:
        accepted, _ = stranger.accept()
        assert ours.recv(1) == b"y"  # it is the other rank's, too, from now on
        os.makedirs(folder)
        # This process, too, is a rank: its connections to itself (rank 0's to its own store) are cut as well, but for the
        # one of an earlier life.
        Path(folder, "rank0.0.begun").write_text(str(child))
        Path(folder, "rank1.7.begun").write_text(str(os.getpid()))
        Path(folder, "rank2.0.begun").write_text("999999999")
        in_place._hang_up(folder, "0")
        assert ours.recv(1) == b""
        accepted.sendall(b"x")
        assert other.recv(1) == b"x"
        accepted.close()
    stranger.close()
    assert os.waitpid(child, 0)[1] == 0


def test_a_save_does_not_wait_for_a_rank_that_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks()
    monkeypatch.setenv(LIFE, "1")
    with pytest.raises(SaveError, match="a rank was lost"):
        await_entries(str(tmp_path), ranks, "save", 1)


def test_ranks_that_would_go_on_from_different_steps_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from trainshed.checkpoint import Checkpointer, CheckpointError

    with Checkpointer(tmp_path, model=torch.nn.Linear(1, 1)) as checkpointer:
        monkeypatch.setattr(checkpointer._ranks, "gather", lambda value: [value, value + 4] if value == 0 else [value])
        with pytest.raises(CheckpointError, match="ranks go on from different steps: 0, 4"):
            checkpointer.restore()


@pytest.mark.parametrize("stopped", [False, True])
def test_a_stop_that_has_come_ends_the_process_before_the_next_life(stopped: bool) -> None:
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        interrupt.listen()
        if stopped:
            os.kill(os.getpid(), signal.SIGTERM)
        interrupt.stop_listening()
        os._exit(3 if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL else 4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (-signal.SIGTERM if stopped else 3)


def test_groups_are_named_as_in_a_process_that_has_just_begun(folder: str) -> None:
    """Also where the process group was being made when a rank was lost."""
    import torch.distributed.distributed_c10d as c10d

    counts: list[int] = []

    @trainshed.resumable
    def train() -> None:
        counts.append(c10d._world.group_count)
        if len(counts) == 1:
            c10d._world.group_count += 1
            tell(folder)

    train()
    assert counts == [0, 0]


def test_the_word_is_awaited_while_a_rank_that_has_failed_ends(folder: str) -> None:
    """It has closed its connections, and its process takes longer than others wait."""

    @trainshed.resumable
    def train() -> str:
        if os.environ[LIFE] == "0":
            Path(folder, "rank0.0.failed").write_text(str(os.getpid()))
            threading.Timer(5 * in_place.WORD_SECONDS, tell, (folder,)).start()
            raise RuntimeError(PEER_GONE)
        return "done"

    assert train() == "done"


def test_a_function_that_is_given_a_model_does_not_live_on(folder: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Ranks that live on would keep what it has learned, and the lost one would not."""
    import torch

    net = torch.nn.Linear(1, 1)
    ways = [
        lambda: trainshed.resumable(lambda model: os.path.exists(folder))(net),
        lambda: trainshed.resumable(lambda *, model: os.path.exists(folder))(model=net),
        lambda: trainshed.resumable(lambda: net is None or os.path.exists(folder))(),
    ]
    assert [way() for way in ways] == [False] * 3
    assert capfd.readouterr().err.count("given a Linear, which it has to make itself") == 3
    assert trainshed.resumable(lambda data: os.path.exists(folder))(torch.ones(1))
