import json
import math
import re
import signal
import threading
from dataclasses import replace
from itertools import count

import pytest
import torch
from tests.pairs import fast
from tests.training.parts import CONFIG, SETTINGS, Quiet, Shift, ShiftTask, fresh, run_training

from qkv.checkpoint.folder import load
from qkv.checkpoint.rotation import best_step, locate, steps
from qkv.errors import CheckpointError, ConfigError, DataError, TrainingError
from qkv.metrics.figure import Figure
from qkv.training.journal import read_journal
from qkv.training.trainer import Trainer


class Stopping(ShiftTask):
    """Receives a real signal while it builds the batch of some update, or in its n-th validation."""

    def __init__(self, model: Shift, at: int, number: int = signal.SIGINT, in_validation: bool = False) -> None:
        super().__init__(model)
        self.at, self.number, self.in_validation, self.seen = at, number, in_validation, 0

    def collate(self, places, device):
        if not self.in_validation and self.model.training:
            self._count()
        return super().collate(places, device)

    def validate(self, model):
        if self.in_validation:
            self._count()
        return super().validate(model)

    def _count(self) -> None:
        self.seen += 1
        if self.seen == self.at:
            signal.raise_signal(self.number)


def stopping(at: int, number: int = signal.SIGINT, *, in_validation: bool = False) -> Stopping:
    torch.manual_seed(3)
    return Stopping(Shift(), at, number, in_validation)


@pytest.fixture(scope="module")
def whole(shared_path):
    return shared_path, run_training(shared_path)


def test_a_training_ends_with_everything_in_its_folder(whole):
    run, outcome = whole
    assert (outcome.reason, outcome.step, outcome.exit_code) == ("finished", 20, 0)
    assert outcome.checkpoint == run / "step-00000020"
    names = sorted(path.name for path in run.iterdir())
    assert [name for name in names if not name.startswith("step")] == [
        ".lock",
        "best",
        "loss.png",
        "metrics.jsonl",
        "run.json",
    ]
    contents = load(locate(run))
    assert contents.config == CONFIG
    assert contents.tokenizer == '{"kind": "none"}'
    assert [figure.name for figure in contents.figures] == ["loss"]
    assert best_step(run) == outcome.best_step
    assert outcome.best.value == load(locate(run)).figures[0].value


def test_the_model_learns(whole):
    run, _ = whole
    losses = [line["loss"] for line in read_journal(run / "metrics.jsonl") if line["kind"] == "train"]
    assert len(losses) == 4
    assert losses[-1] < 0.6 * losses[0]


def test_the_same_training_gives_the_same_bits(whole, tmp_path):
    assert run_training(tmp_path).digest == whole[1].digest


def test_another_seed_gives_others(whole, tmp_path):
    assert run_training(tmp_path, replace(SETTINGS, seed=1)).digest != whole[1].digest


def test_saving_and_judging_more_often_changes_no_weight(whole, tmp_path):
    outcome = run_training(tmp_path, replace(SETTINGS, validate_every=7))
    first, second = load(whole[1].checkpoint), load(outcome.checkpoint)
    assert all(torch.equal(tensor, second.model[name]) for name, tensor in first.model.items())
    assert all(torch.equal(tensor, second.trainer.tensors[name]) for name, tensor in first.trainer.tensors.items())


@pytest.mark.parametrize("at", fast([1, 5, 6, 10, 11, 19, 20], "1", "6", "11", "20"))
def test_stopped_and_gone_on_with_is_as_never_stopped(whole, tmp_path, at):
    outcome = run_training(tmp_path, task=stopping(at))
    # The interrupted update is abandoned and repeated.
    assert (outcome.reason, outcome.exit_code, outcome.step) == ("interrupted", 130, at - 1)
    outcome = run_training(tmp_path)
    assert (outcome.reason, outcome.step) == ("finished", 20)
    assert outcome.digest == whole[1].digest
    assert best_step(tmp_path) == best_step(whole[0])
    compare_journals(tmp_path, whole[0])


def compare_journals(first, second):
    clocks = {"tokens_per_second", "seconds", "seconds_left"}
    lines = [
        [{name: x for name, x in line.items() if name not in clocks} for line in read_journal(run / "metrics.jsonl")]
        for run in (first, second)
    ]
    assert lines[0] == lines[1]


@pytest.mark.parametrize(
    ("accumulate", "at"),
    [
        pytest.param(1, 2, marks=pytest.mark.slow),
        pytest.param(3, 4, marks=pytest.mark.slow),
        (3, 5),
        pytest.param(3, 6, marks=pytest.mark.slow),
    ],
)
def test_stopped_in_every_update_is_as_never_stopped(tmp_path, accumulate, at):
    """In any of the batches of an accumulated update."""
    settings = replace(SETTINGS, steps=8, accumulate=accumulate)
    expected = run_training(tmp_path / "whole", settings)
    for step in range(1, 8):
        assert run_training(tmp_path / "parts", settings, task=stopping(at)).step == step
    outcome = run_training(tmp_path / "parts", settings)
    assert (outcome.step, outcome.digest) == (8, expected.digest)
    compare_journals(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("at", [1, 2, 4])
def test_stopped_in_a_validation_makes_it_again(whole, tmp_path, at):
    outcome = run_training(tmp_path, task=stopping(at, signal.SIGTERM, in_validation=True))
    assert (outcome.reason, outcome.exit_code, outcome.step) == ("interrupted", 143, min(6 * at, 20))
    assert load(outcome.checkpoint).figures == ()
    assert run_training(tmp_path).digest == whole[1].digest
    compare_journals(tmp_path, whole[0])


def test_bfloat16_goes_on_exactly_too(tmp_path):
    settings = replace(SETTINGS, precision="bfloat16", steps=8)
    expected = run_training(tmp_path / "whole", settings)
    run_training(tmp_path / "parts", settings, task=stopping(5))
    assert run_training(tmp_path / "parts", settings).digest == expected.digest


def test_what_auto_chose_is_kept_for_going_on(tmp_path):
    settings = replace(SETTINGS, precision="auto", steps=8)
    stream = Quiet()
    first = run_training(tmp_path, settings, task=stopping(3), stream=stream)
    assert stream.text.startswith("Precision: bfloat16 takes ")
    chosen = load(first.checkpoint).trainer.numbers["precision"]
    assert chosen in stream.text
    again = Quiet()
    last = run_training(tmp_path, settings, stream=again)
    assert "Precision" not in again.text
    assert load(last.checkpoint).trainer.numbers["precision"] == chosen


def test_how_to_go_on_is_said(tmp_path):
    stream = Quiet()
    run_training(tmp_path, task=stopping(3), stream=stream)
    assert f"Stopped at step 2 of 20; everything is saved in {tmp_path / 'step-00000002'}." in stream.text
    assert "Run the same command again to resume." in stream.text
    stream = Quiet()
    run_training(tmp_path, stream=stream)
    assert "Resuming from step-00000002" in stream.text


def test_a_signal_before_the_first_update_saves_too(tmp_path):
    class Early(ShiftTask):
        def batches(self, *, tokens, seed, epoch):
            signal.raise_signal(signal.SIGTERM)
            return super().batches(tokens=tokens, seed=seed, epoch=epoch)

    torch.manual_seed(3)
    outcome = run_training(tmp_path, task=Early(Shift()))
    assert (outcome.step, outcome.exit_code) == (0, 143)
    assert run_training(tmp_path).step == 20


def test_a_finished_training_given_again_changes_nothing(tmp_path):
    first = run_training(tmp_path, replace(SETTINGS, steps=6))
    before = (first.checkpoint / "MANIFEST.json").stat().st_mtime_ns
    stream = Quiet()
    second = run_training(tmp_path, replace(SETTINGS, steps=6), stream=stream)
    assert second == first
    assert (first.checkpoint / "MANIFEST.json").stat().st_mtime_ns == before
    assert "has already completed all 6 steps" in stream.text


def test_a_training_that_went_further_than_asked_says_how_far(tmp_path):
    run_training(tmp_path, replace(SETTINGS, steps=6), config=CONFIG | {"steps": 6}, free=["steps"])
    stream = Quiet()
    less = run_training(
        tmp_path, replace(SETTINGS, steps=4), config=CONFIG | {"steps": 4}, free=["steps"], stream=stream
    )
    assert less.step == 6
    assert "completed 6 steps, more than the 4" in stream.text


def test_more_updates_may_be_given_where_the_field_is_free(tmp_path):
    run_training(tmp_path, replace(SETTINGS, steps=6), config=CONFIG | {"steps": 6}, free=["steps"])
    more = replace(SETTINGS, steps=12)
    assert run_training(tmp_path, more, config=CONFIG | {"steps": 12}, free=["steps"]).step == 12


def test_another_configuration_is_refused_and_nothing_is_lost(whole, tmp_path):
    run_training(tmp_path, replace(SETTINGS, steps=6))
    expected = r"width 16 \(it was 8\)"
    with pytest.raises(ConfigError, match=expected):
        run_training(tmp_path, config={"task": "shift", "model": {"width": 16}})
    assert steps(tmp_path) == [6]


def test_another_model_of_the_same_configuration_is_refused(tmp_path):
    run_training(tmp_path, replace(SETTINGS, steps=6))
    torch.manual_seed(3)
    with pytest.raises(CheckpointError, match="the weights of this model"):
        run_training(tmp_path, task=ShiftTask(Shift(width=16)))


def test_other_data_are_refused(tmp_path):
    run_training(tmp_path, replace(SETTINGS, steps=6))
    torch.manual_seed(3)
    with pytest.raises(CheckpointError, match="Give the same training data as before"):
        run_training(tmp_path, task=ShiftTask(Shift(), examples=30))


def test_a_damaged_newest_checkpoint_is_passed_over_and_made_again(whole, tmp_path):
    run_training(tmp_path, task=stopping(16))
    (tmp_path / "step-00000015" / "model.safetensors").write_bytes(b"")
    stream = Quiet()
    outcome = run_training(tmp_path, stream=stream)
    assert "Skipping a damaged checkpoint" in stream.text
    assert "Resuming from step-00000012" in stream.text
    assert outcome.digest == whole[1].digest


def test_a_checkpoint_without_trainer_cannot_be_gone_on_with(tmp_path):
    outcome = run_training(tmp_path, replace(SETTINGS, steps=6))
    from qkv.checkpoint.folder import save

    save(outcome.checkpoint, replace(load(outcome.checkpoint), trainer=None), replace=True)
    with pytest.raises(CheckpointError, match="a checkpoint with the trainer's state; got a checkpoint without it"):
        run_training(tmp_path)


@pytest.mark.parametrize("content", [None, b"damaged", b'{"checkpoint": "step-00000099"}'])
def test_the_pointer_to_the_best_is_mended_when_going_on(tmp_path, content):
    settings = replace(SETTINGS, steps=6)
    run_training(tmp_path, settings)
    (tmp_path / "best").unlink()
    if content is not None:
        (tmp_path / "best").write_bytes(content)
    run_training(tmp_path, settings)
    assert best_step(tmp_path) == 6


def test_accumulating_gives_the_gradient_of_the_larger_batch(tmp_path):
    """Without dropout, k small batches and one batch of all give the same update, weighted by tokens."""

    class Grouped(ShiftTask):
        def batches(self, *, tokens, seed, epoch):
            return [[0, 1, 2, 3, 4, 5]] if tokens == 3 else [[0], [1, 2], [3, 4, 5]]

    models = []
    for name, tokens, accumulate in (("one", 3, 1), ("three", 1, 3)):
        torch.manual_seed(3)
        task = Grouped(Shift())
        task.model.dropout.p = 0.0
        run_training(tmp_path / name, replace(SETTINGS, steps=3, batch_tokens=tokens, accumulate=accumulate), task=task)
        models.append(task.model)
    for first, second in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-6)


class Worsening(ShiftTask):
    def __init__(self, model: Shift, values: list[float]) -> None:
        super().__init__(model)
        self.values = values

    def validate(self, model):
        figure = super().validate(model)[0]
        return [replace(figure, name="score", value=self.values.pop(0), higher_is_better=True)]


def test_training_ends_when_patience_does(tmp_path):
    settings = replace(SETTINGS, validate_every=2, patience=2, keep=1)
    stream = Quiet()
    outcome = run_training(tmp_path, settings, task=Worsening(Shift(), [1, 3, 2, 3, 9]), stream=stream)
    assert (outcome.reason, outcome.step, outcome.best_step, outcome.best.value) == ("patience", 8, 4, 3)
    assert steps(tmp_path) == [4, 8]
    assert locate(tmp_path).name == "step-00000004"
    assert "no improvement in 2 validations" in stream.text
    again = run_training(tmp_path, settings, task=Worsening(Shift(), []))
    assert (again.reason, again.step) == ("patience", 8)


def test_an_unknown_monitor_is_an_error_at_the_first_validation(tmp_path):
    with pytest.raises(ConfigError, match="one of the figures loss"):
        run_training(tmp_path, replace(SETTINGS, monitor="bleu"))


def test_without_figures_the_newest_is_the_best(tmp_path):
    class Unjudged(ShiftTask):
        def validate(self, model):
            return []

    outcome = run_training(tmp_path, task=Unjudged(Shift()))
    assert locate(tmp_path) == outcome.checkpoint
    assert outcome.best is None


class Exploding(ShiftTask):
    """One example, or all, make the loss or the gradient NaN or infinite."""

    def __init__(self, model: Shift, guilty: set[int], after: int, where: str) -> None:
        super().__init__(model)
        self.guilty, self.after, self.where, self.updates, self.places = guilty, after, where, 0, ()

    def collate(self, places, device):
        self.updates += self.model.training
        self.places = places
        return super().collate(places, device)

    def objective(self, model, batch):
        loss, count = super().objective(model, batch)
        if self.updates > self.after and self.guilty & set(self.places):
            if self.where == "loss":
                loss = loss * math.nan
            else:
                loss = loss + (self.model.hidden.bias - self.model.hidden.bias.detach()).abs().sqrt().sum()
        return loss, count


def test_a_loss_that_is_no_number_stops_with_step_and_line_and_keeps_the_last_checkpoint(tmp_path):
    task = Exploding(Shift(), {7}, 10, "loss")
    expected = (
        r"loss at step 1\d: expected a finite number; got nan because of line 8\. The last good checkpoint is intact"
    )
    with pytest.raises(TrainingError, match=expected):
        run_training(tmp_path, task=task)
    assert 6 in steps(tmp_path)
    assert all(torch.isfinite(tensor).all() for tensor in load(locate(tmp_path)).model.values())


def test_a_gradient_that_is_no_number_stops_before_the_update(tmp_path):
    task = Exploding(Shift(), set(range(40)), 7, "gradient")
    with pytest.raises(TrainingError, match=r"norm of the gradient at step 8: .* got nan in a batch of lines \d+"):
        run_training(tmp_path, task=task)
    assert steps(tmp_path) == [6]
    assert all(torch.isfinite(parameter).all() for parameter in task.model.parameters())


def test_weights_that_are_no_numbers_are_never_saved(tmp_path):
    class Poisoned(ShiftTask):
        def validate(self, model):
            figures = super().validate(model)
            if self.model.seen > 150:
                with torch.no_grad():
                    self.model.hidden.weight[0, 0] = math.inf
            return figures

    with pytest.raises(TrainingError, match=r"hidden\.weight after step \d+: expected finite weights"):
        run_training(tmp_path, task=Poisoned(Shift()))
    assert all(torch.isfinite(tensor).all() for tensor in load(locate(tmp_path)).model.values())


def test_a_batch_with_nothing_to_learn_is_said_with_its_lines(tmp_path):
    task = fresh()
    task.examples = [torch.zeros(3, dtype=torch.int64)] * 3
    with pytest.raises(DataError, match="at least one token to learn in every batch; got nothing in lines 1-3"):
        run_training(tmp_path, task=task)


def test_a_batch_too_large_for_memory_says_what_to_lower(tmp_path):
    class Huge(ShiftTask):
        def objective(self, model, batch):
            torch.empty(1 << 60)
            return super().objective(model, batch)

    with pytest.raises(TrainingError, match=r"memory at step 1: .*Lower batch_tokens \(now 24\)"):
        run_training(tmp_path, task=Huge(Shift()))


def test_another_error_of_the_task_passes_unchanged_and_the_run_can_go_on(whole, tmp_path):
    class Faulty(ShiftTask):
        def objective(self, model, batch):
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        run_training(tmp_path, task=Faulty(Shift()))
    assert run_training(tmp_path).digest == whole[1].digest


def test_another_number_of_threads_is_said(tmp_path):
    settings = replace(SETTINGS, steps=4)
    run_training(tmp_path, settings, task=stopping(4))
    numbers = load(tmp_path / "step-00000003").trainer.numbers
    threads = torch.get_num_threads()
    stream = Quiet()
    try:
        torch.set_num_threads(threads + 1)
        run_training(tmp_path, settings, stream=stream)
    finally:
        torch.set_num_threads(threads)
    assert numbers["threads"] == threads
    assert f"PyTorch now has {threads + 1} threads instead of {threads}" in stream.text


def test_other_kernels_or_instructions_are_said(tmp_path, monkeypatch):
    settings = replace(SETTINGS, steps=6)
    monkeypatch.setenv("QKV_KERNELS", "none")
    run_training(tmp_path, settings, task=stopping(3))
    stream = Quiet()
    run_training(tmp_path, settings, task=stopping(4), stream=stream)
    assert "last bits" not in stream.text
    monkeypatch.setenv("QKV_KERNELS", "python")
    run_training(tmp_path, settings, task=stopping(5), stream=stream)
    assert re.search(
        r"Kernels: python, PyTorch: (\w+) instead of Kernels: none, PyTorch: \1: the last bits", stream.text
    )
    stream = Quiet()
    run_training(tmp_path, settings, stream=stream)
    assert "last bits" not in stream.text


def test_two_trainings_cannot_share_a_folder(tmp_path):
    class Nested(ShiftTask):
        def validate(self, model):
            run_training(tmp_path)
            return []

    with pytest.raises(CheckpointError, match="no other training uses"):
        run_training(tmp_path, task=Nested(Shift()))


def test_another_thread_may_train(whole, tmp_path):
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(run_training(tmp_path)))
    thread.start()
    thread.join()
    assert outcomes[0].digest == whole[1].digest


def test_the_log_is_complete(whole):
    lines = read_journal(whole[0] / "metrics.jsonl")
    assert [line["step"] for line in lines if line["kind"] == "train"] == [5, 10, 15, 20]
    assert [line["step"] for line in lines if line["kind"] == "validation"] == [6, 12, 18, 20]
    for line in lines:
        json.dumps(line, allow_nan=False)


def test_standard_error_is_where_progress_goes(tmp_path, capsys):
    run_training(tmp_path, replace(SETTINGS, steps=5), stream=None)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("step 5/5  loss ")


def rates_of(run):
    return {
        event["step"]: event["learning_rate"]
        for event in read_journal(run / "metrics.jsonl")
        if event["kind"] == "train"
    }


FREE = ("training.steps", "training.schedule_steps")


def going_on(run, settings, **training):
    """Go on with other settings of the training; returns what was said about the learning rate."""
    stream = Quiet()
    run_training(run, replace(settings, **training), config=CONFIG | {"training": training}, free=FREE, stream=stream)
    return [line for line in stream.text.splitlines() if "learning rate" in line]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "inverse-sqrt", "constant"])
@pytest.mark.parametrize(("first", "later"), [(6, 18), (12, 30), (20, 21)])
def test_more_steps_never_move_the_learning_rate_in_silence(schedule, first, later, tmp_path):
    settings = replace(SETTINGS, schedule=schedule, log_every=1)
    assert going_on(tmp_path, settings, steps=first) == []
    said = going_on(tmp_path, settings, steps=later)
    rate = rates_of(tmp_path)
    before, after = rate[first], rate[first + 1]
    moves = max(before, after) > 1.1 * min(before, after)
    assert bool(said) == moves
    if moves:
        names = (f"{before:.2g}", f"{after:.2g}", f"{first:,}", f"{later:,}", f"--schedule-steps {first}")
        assert all(part in said[0] for part in names)


def test_a_finished_schedule_goes_on_at_its_last_rate_if_asked(tmp_path):
    settings = replace(SETTINGS, schedule="cosine", log_every=1)
    going_on(tmp_path, settings, steps=6)
    assert going_on(tmp_path, settings, steps=18, schedule_steps=6) == []
    assert going_on(tmp_path, settings, steps=24, schedule_steps=6) == []
    rate = rates_of(tmp_path)
    assert [rate[step] for step in range(7, 25)] == [rate[6]] * 18


def test_timing_updates_changes_nothing(whole, tmp_path):
    task, ticks = fresh(), count()
    trainer = Trainer(task, task.model, SETTINGS, CONFIG)
    before = {name: tensor.clone() for name, tensor in task.model.state_dict().items()}
    # The clock is read before and after the updates, and between them: three updates, five readings.
    assert trainer.seconds_of_update(3.0, lambda: float(next(ticks))) == pytest.approx(4 / 3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in task.model.state_dict().items())
    assert run_training(tmp_path, task=task).digest == whole[1].digest


class Stuck(ShiftTask):
    """A first figure that never moves."""

    def validate(self, model):
        return [Figure("accuracy", 0.0, ""), *super().validate(model)]


def test_a_figure_that_does_not_move_neither_chooses_nor_ends(tmp_path):
    torch.manual_seed(3)
    stream, settings = Quiet(), replace(SETTINGS, steps=24, patience=2)
    outcome = run_training(tmp_path, settings, Stuck(Shift()), stream=stream)
    losses = {
        row["step"]: row["loss"] for row in read_journal(tmp_path / "metrics.jsonl") if row["kind"] == "validation"
    }
    assert outcome.reason == "finished"
    assert outcome.best.name == "accuracy"
    assert outcome.best_step == best_step(tmp_path) == min(losses, key=losses.get) > 6
    assert stream.text.count("does not move") == 1
