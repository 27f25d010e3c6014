"""What each platform's metadata service says, and what we make of it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from support.notice_jobs import Service, service, wait_for
from trainshed.container.notices import Notices, http, platforms
from trainshed.container.notices.polling import Azure, Ec2, Gce, follow
from trainshed.contract.wire.notice import NoticeWatch, read_notice

LIFE, ACTION, REBALANCE = (
    f"/latest/meta-data/{name}"
    for name in ("instance-life-cycle", "spot/instance-action", "events/recommendations/rebalance")
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The services are threads of this very process: when it stands still, so do they."""
    monkeypatch.setattr(http, "SECONDS", 120.0)


def spot(served: Service) -> Ec2:
    served.answers |= {"/latest/api/token": (200, "secret"), LIFE: (200, "spot")}
    served.needs = {"X-aws-ec2-metadata-token": "secret"}
    return Ec2({"AWS_EC2_METADATA_SERVICE_ENDPOINT": served.endpoint})


def test_ec2_says_nothing_until_there_is_an_instance_action() -> None:
    with service() as served:
        source = spot(served)
        assert source.poll(0.0) == []
        assert not source.nothing_to_watch
        served.answers[ACTION] = (200, '{"action": "terminate", "time": "2026-03-04T05:06:07Z"}')
        ((name, reason, stop, deadline),) = source.poll(1772600747.0)
        assert (name, stop, deadline) == ("ec2", True, 1772600767.0)
        assert reason == "EC2 will terminate this spot instance in 20 s"


def test_ec2_token_is_asked_for_with_a_lifetime_and_again_when_it_has_expired() -> None:
    with service() as served:
        source = spot(served)
        source.poll(0.0)
        served.needs = {"X-aws-ec2-metadata-token": "new"}
        served.answers["/latest/api/token"] = (200, "new")
        assert source.poll(0.0) == []
        tokens = [headers for method, _, headers in served.asked if method == "PUT"]
        assert len(tokens) == 2
        assert all(headers["X-aws-ec2-metadata-token-ttl-seconds"] == "21600" for headers in tokens)


def test_ec2_rebalance_recommendation_asks_to_save_and_not_to_stop_and_only_once() -> None:
    with service() as served:
        source = spot(served)
        served.answers[REBALANCE] = (200, '{"noticeTime": "2026-03-04T05:06:07Z"}')
        ((name, _, stop, deadline),) = source.poll(0.0)
        assert (name, stop, deadline) == ("ec2-rebalance", False, None)
        assert source.poll(0.0) == []


def test_ec2_on_demand_is_not_watched() -> None:
    with service() as served:
        source = spot(served)
        served.answers[LIFE] = (200, "on-demand")
        announced: list[object] = []
        follow(source, lambda *what: announced.append(what), pause=lambda _: None)
        assert source.nothing_to_watch
        assert not announced
        assert sum(path == LIFE for _, path, _ in served.asked) == 1


def test_gce_preemption_leaves_thirty_seconds() -> None:
    with service() as served:
        served.needs = {"Metadata-Flavor": "Google"}
        served.answers["/computeMetadata/v1/instance/preempted"] = (200, "FALSE")
        source = Gce({"GCE_METADATA_HOST": served.endpoint.removeprefix("http://")})
        assert source.poll(0.0) == []
        served.answers["/computeMetadata/v1/instance/preempted"] = (200, "TRUE")
        before = time.time()
        ((name, _, stop, deadline),) = source.poll(0.0)
        assert (name, stop) == ("gce", True)
        assert deadline is not None
        assert before + 30 <= deadline <= time.time() + 30
        first, second = (path for _, path, _ in served.asked)
        assert "wait_for_change=true" in first
        assert "last_etag=0" in first
        assert "last_etag=0" not in second  # the service waits for another value than the one we know


@pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Reboot", "Redeploy"])
def test_azure_events_that_end_this_machine_stop_the_job(kind: str) -> None:
    with service() as served:
        served.needs = {"Metadata": "true"}
        served.answers["/metadata/instance/compute/name"] = (200, "mine")
        event = {"EventType": kind, "Resources": ["mine"], "NotBefore": "Wed, 04 Mar 2026 05:06:07 GMT"}
        served.answers["/metadata/scheduledevents"] = (200, json.dumps({"Events": [event]}))
        source = Azure({"TRAINSHED_AZURE_METADATA": served.endpoint})
        assert source.poll(1772600737.0) == [("azure", f"Azure ends this machine in 30 s ({kind})", True, 1772600767.0)]


@pytest.mark.parametrize(
    "event", [{"EventType": "Freeze", "Resources": ["mine"]}, {"EventType": "Preempt", "Resources": ["other"]}]
)
def test_azure_events_that_do_not_end_this_machine_are_passed_over(event: dict[str, object]) -> None:
    with service() as served:
        served.answers["/metadata/instance/compute/name"] = (200, "mine")
        served.answers["/metadata/scheduledevents"] = (200, json.dumps({"Events": [event]}))
        assert Azure({"TRAINSHED_AZURE_METADATA": served.endpoint}).poll(0.0) == []


def test_a_service_that_cannot_be_reached_is_given_up() -> None:
    with service() as served:
        source = Ec2({"AWS_EC2_METADATA_SERVICE_ENDPOINT": served.endpoint})
    pauses: list[float] = []
    follow(source, lambda *_: pytest.fail("nothing was announced"), pause=pauses.append)
    assert len(pauses) == 3


def test_platforms_are_known_by_their_firmware(tmp_path: Path) -> None:
    def says(**files: str) -> list[str]:
        folder = tmp_path / "-".join(files.values()).replace(" ", "")
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text + "\n")
        return platforms.present({}, str(folder))

    assert says(sys_vendor="Amazon EC2") == ["ec2"]
    assert says(sys_vendor="Google", product_name="Google Compute Engine") == ["gce"]
    assert says(sys_vendor="Microsoft Corporation", chassis_asset_tag="7783-7084-3265-9085-8269-3286-77") == ["azure"]
    assert says(sys_vendor="QEMU", product_name="Standard PC") == []
    assert platforms.present({"AWS_EC2_METADATA_DISABLED": "true"}, str(tmp_path / "AmazonEC2")) == []


def notices(folder: Path, environ: dict[str, str] | None = None, said: list[str] | None = None) -> Notices:
    return Notices(f"{folder}/run/notice.json", environ or {}, (said if said is not None else []).append)


def test_sigusr1_asks_for_a_hang_report_and_is_not_a_notice(tmp_path: Path) -> None:
    one = notices(tmp_path, {"SLURM_JOB_ID": "1"})
    one.signalled(signal.SIGUSR1, 110.0)

    assert read_notice(one.path) is None


def test_a_stop_signal_becomes_a_notice_with_its_deadline(tmp_path: Path) -> None:
    one = notices(tmp_path)
    before = time.time()
    one.signalled(signal.SIGTERM, 110.0)
    notice = read_notice(one.path)
    assert notice is not None
    assert (notice.number, notice.source, notice.stop) == (1, "SIGTERM", True)
    assert notice.deadline is not None and before + 110.0 <= notice.deadline <= notice.received + 110.0
    assert os.stat(tmp_path / "run").st_mode & 0o777 == 0o700


def test_usr2_is_a_notice_under_slurm_alone(tmp_path: Path) -> None:
    notices(tmp_path / "a").signalled(signal.SIGUSR2, 110.0)
    assert not (tmp_path / "a/run").exists()
    one = notices(tmp_path / "b", {"SLURM_JOB_ID": "1", "SLURM_JOB_END_TIME": str(int(time.time()) + 60)})
    one.signalled(signal.SIGUSR2, 110.0)
    notice = read_notice(one.path)
    assert notice is not None
    assert notice.source == "slurm"
    assert notice.deadline == float(one._environ["SLURM_JOB_END_TIME"])


def test_a_rank_sees_every_notice_once_and_a_less_urgent_one_never(tmp_path: Path) -> None:
    one = notices(tmp_path)
    watch = NoticeWatch(one.path)
    assert watch.look() is None
    assert not one._post("ec2-rebalance", "risk", False, None)
    first = watch.look()
    assert first is not None
    assert not first.stop
    assert one._post("ec2", "the end", True, 1000.0)
    second = watch.look()
    assert second is not None
    assert (second.number, second.stop) == (2, True)
    assert not one._post("ec2-rebalance", "risk", False, None)
    assert not one._post("SIGTERM", "later", True, 2000.0)
    assert watch.look() is None
    assert not one._post("SIGTERM", "sooner", True, 500.0)  # no news, but less time
    third = watch.look()
    assert third is not None
    assert third.deadline == 500.0


def test_what_a_watching_thread_announces_wakes_the_loop(tmp_path: Path) -> None:
    import select

    with service() as served:
        spot(served)
        said: list[str] = []
        one = notices(tmp_path, {"AWS_EC2_METADATA_SERVICE_ENDPOINT": served.endpoint}, said)
        served.answers[ACTION] = (200, '{"action": "stop", "time": "2026-03-04T05:06:07Z"}')
        assert one.fd == -1
        one.started()
        try:
            wait_for(lambda: bool(select.select([one.fd], [], [], 0)[0]))
            assert one.take()
            assert not one.take()
        finally:
            one.close()
        notice = read_notice(one.path)
        assert notice is not None
        assert notice.source == "ec2"
        assert said == [f"notice: {notice.reason}"]
