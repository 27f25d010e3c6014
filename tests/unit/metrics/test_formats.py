"""Lines that common programs print, and lines that look alike and hold no metrics."""

from __future__ import annotations

from typing import Any

import pytest

from trainshed.metrics.scraper import Scraper

HF4 = "{'loss': 0.6931, 'grad_norm': 3.25, 'learning_rate': 4.9375e-05, 'epoch': 0.5}"
HF5 = "{'loss': '0.6931', 'grad_norm': '3.25', 'learning_rate': '4.9375e-05', 'epoch': '0.5'}"
HF = {"loss": 0.6931, "grad_norm": 3.25, "learning_rate": 4.9375e-05}


def found(text: str, format: str = "auto") -> dict[str, tuple[float, Any, Any]]:
    points = Scraper(format=format).scan(text.encode() + b"\n", 0.0)
    return {point.name: (point.value, point.step, point.epoch) for point in points}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HF4, {name: (value, None, 0.5) for name, value in HF.items()}),
        (HF5, {name: (value, None, 0.5) for name, value in HF.items()}),
        ("INFO: " + HF5 + "\r 10%|# | 1/10 [00:01<00:09,  1.0s/it]\r" + HF4, {n: (v, None, 0.5) for n, v in HF.items()}),
        ("{'eval_loss': 1e-05, 'epoch': 1.0}", {"eval_loss": (1e-05, None, 1.0)}),
        (
            "10/10 - 1s - 82ms/step - accuracy: 0.5000 - loss: 0.6 - val_loss: 7e-1",
            {"accuracy": (0.5, None, None), "loss": (0.6, None, None), "val_loss": (0.7, None, None)},
        ),
        (
            "Epoch 2/5\n\x1b[1m10/10\x1b[0m \x1b[32m━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m1s\x1b[0m 5ms/step - loss: 0.4",
            {"loss": (0.4, None, 2.0)},
        ),
        (
            "Epoch 0: 100%|███| 10/10 [00:00<00:00, 50.0it/s, v_num=0, train_loss=0.5]",
            {"train_loss": (0.5, 10, 0.0)},
        ),
        (
            "training:  30%|###  | 3/10 [00:03<00:07, 1.01s/it, loss=0.25, lr=1e-4]",
            {"loss": (0.25, 3, None), "lr": (1e-4, 3, None)},
        ),
        ("│         test_loss         │    0.1234    │", {"test_loss": (0.1234, None, None)}),
        ('{"step": 3, "loss": 1e-3, "level": "info", "ts": 1790000000}', {"loss": (1e-3, 3, None)}),
        ("step 10: loss=0.4, lr: 5e-05", {"loss": (0.4, 10, None), "lr": (5e-05, 10, None)}),
        ("Epoch 3/10 | loss 0.4 | acc 0.9", {"loss": (0.4, None, 3.0), "acc": (0.9, None, 3.0)}),
        ("[algo-1] [rank 0] metric loss=nan step=2", {"loss": (pytest.approx(float("nan"), nan_ok=True), 2, None)}),
        ("loss: 0.5", {"loss": (0.5, None, None)}),
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.305", {"Loss": (2.305, None, 1.0)}),
        ("Epoch: [0][ 10/391]\tTime  0.123 ( 0.2)\tLoss 6.9e+00 (7.0e+00)", {"Loss": (6.9, None, None)}),
        ("iter 100: loss 2.5, time 100.2ms, mfu 5.1%", {"loss": (2.5, 100, None)}),
        ("took 3.2s, loss=0.1", {"loss": (0.1, None, None)}),
        (
            "Test set: Average loss: 0.0285, Accuracy: 9905/10000 (99%)",
            {"loss": (0.0285, None, None), "Accuracy": (0.9905, None, None)},
        ),
        ("Epoch: 3/10 Batch: 7/250 Loss: 0.5 Speed: 3/4", {"Loss": (0.5, 7, 3.0)}),
        ("loss 0.5/0.6, acc: 11/10, reward: 2.5", {"reward": (2.5, None, None)}),
        ("Test Accuracy: 93.5%, loss: 0.3", {"Accuracy": (93.5, None, None), "loss": (0.3, None, None)}),
        ("step 7: train loss 2.5, val loss 2.6", {"train_loss": (2.5, 7, None), "val_loss": (2.6, 7, None)}),
        ("Train Loss: 0.5, Train Acc: 0.81", {"Loss": (0.5, None, None), "Acc": (0.81, None, None)}),
        ("step 3\treward 12.5", {"reward": (12.5, 3, None)}),
    ],
)
def test_what_common_programs_print_is_known_by_its_looks(text: str, expected: dict[str, Any]) -> None:
    assert found(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "the loss of 3 packets",
        "the loss 3 of them had",
        "Accepted: 5 files",
        "loading the step: 50%|#### | 1/2",
        "step: 10, loss: 1,234.5",  # never 1
        "loss: 0.5.3",
        "metrics loss",
        "10.0.0.1 - GET /loss?x=5 HTTP/1.1 200",
        "{'vocab_size': 50257, 'n_layer': 12, 'loss_type': 'x'}",
        "{'batch_size': 8}",
        '{"level": "info", "port": 8080, "msg": "loss of connection"}',
        "3/10 - 0s - 82ms/step - accuracy: 0.5000 - loss: 0.6",  # a bar that is still growing
        "100%|███| 10/10 [00:00<00:00, 50.0it/s] loss",
        "accelerate 1.2.0 is installed",
        "{" * 5000 + "loss",
    ],
)
def test_lines_that_only_look_like_it_hold_nothing(text: str) -> None:
    assert found(text) == {}


def test_one_format_can_be_asked_for_and_metric_lines_always_count() -> None:
    text = f"{HF5}\nmetric reward=3\nstep=1 loss=2"

    assert found(text, "off") == {"reward": (3.0, None, None)}
    assert found(text, "hf").keys() == {*HF, "reward"}
    assert found(text, "kv").keys() == {"loss", "reward"}


@pytest.mark.parametrize("line", [b"Train Loss: 0.5, Train Acc: 0.81", b"epoch=1 f1=0.8", b"Step 2 reward 3.5"])
def test_what_a_line_holds_is_found_without_others_beside_it(line: bytes) -> None:
    assert Scraper().scan(line + b"\n", 0.0) and Scraper().text(line + b"\n", 0.0)


def test_ranks_that_print_at_once_keep_their_epochs() -> None:
    scraper = Scraper()
    scraper.scan(b"Epoch 1/5\n", 0.0, rank=0)
    scraper.scan(b"Epoch 4/5\n", 0.0, rank=1)
    (point,) = scraper.scan(b"10/10 - 1s - loss: 0.6\n", 0.0, rank=0)

    assert (point.epoch, point.rank) == (1.0, 0)
