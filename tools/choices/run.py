"""One run: train on questions, and judge those that were held out, before and after."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

import uform
from tools.choices.calibration import Calibration, calibrate
from tools.choices.questions import Questioner, Questions
from tools.choices.wordnet import Wordnet
from tools.emoji.batches import prefetch
from uform import Modality, Objective

COLUMNS_PER_QUESTION = 192  # on average a definition and four words take half of this
TOLD_STEPS = 10


@dataclass(frozen=True)
class Recipe:
    """What is trained and for how long.

    Attributes:
        depth: blocks of the encoder.
        hidden: its width, a multiple of 64.
        choices: of a question.
        questions: of a step.
        steps: optimizer steps.
        learning_rate: the peak.
        weight_decay: on matrices.
        label_smoothing: the share of a target that is spread over all choices.
        masked: the probability of a definition's byte to be covered and guessed beside the choices, or 0.
        valid: held-out questions that are judged, or all where there are fewer.
        row_columns: bytes of a definition and its words, together, before a definition is cut.
        seed: of the weights and of the questions.
    """

    depth: int = 4
    hidden: int = 384
    choices: int = 4
    questions: int = 128
    steps: int = 4000
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    label_smoothing: float = 0.0
    masked: float = 0.15
    valid: int = 5000
    row_columns: int = 512
    seed: int = 0


class Learner:
    """A run on an executor."""

    def __init__(self, executor: uform.Executor, recipe: Recipe) -> None:
        make = uform.Trainer.init_ram if executor.kind == "ram" else uform.Trainer.init_vram
        self._executor = executor
        self._trainer = make(
            executor,
            depth=recipe.depth,
            hidden=recipe.hidden,
            # Without relations the contrastive objective adds nothing.
            objective=Objective.MASKED if recipe.masked else Objective.CONTRASTIVE,
            masking=uform.Masking(token_mask_probability=recipe.masked),
            batch=uform.BatchShape(
                max_rows_per_device=-(-recipe.questions * COLUMNS_PER_QUESTION // recipe.row_columns),
                max_columns_per_row=recipe.row_columns,
                max_segments_per_device=recipe.questions,
                max_choices_per_item=recipe.choices,
            ),
            choices=uform.Choices(label_smoothing=recipe.label_smoothing),
            schedule=uform.Schedule(learning_rate=recipe.learning_rate, steps=recipe.steps),
            optimizer=uform.Optimizer(weight_decay=recipe.weight_decay),
            seed=recipe.seed,
        )

    def step(self, questions: Questions) -> uform.TrainerStepStats:
        """One optimizer step."""
        stats = uform.TrainerStepStats()
        self._trainer.step(
            [Modality.TEXT] * len(questions),
            questions.texts,
            choices=questions.choices,
            choice_targets=questions.targets,
            stats=stats,
        )
        return stats

    def judge(self, questions: Questions) -> Calibration:
        """How the run chooses as it stands."""
        opened = uform.Model.init_ram if self._executor.kind == "ram" else uform.Model.init_vram
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.safetensors"
            self._trainer.save(path)
            answer = opened(self._executor, path).text_choose(questions.texts, questions.choices)
        return calibrate(answer.numpy().reshape(len(questions), -1), questions.answers)


def train(executor: uform.Executor, recipe: Recipe, wordnet: Wordnet) -> dict[str, Calibration]:
    """Trains once; answers what held-out questions found before and after."""
    rng = np.random.default_rng(recipe.seed)
    valid = Questioner(wordnet, "valid", recipe.choices)
    held_out = valid.ask(rng.permutation(len(valid))[: recipe.valid], rng)
    learner = Learner(executor, recipe)
    judged = {"before": learner.judge(held_out)}
    batches = Questioner(wordnet, "train", recipe.choices).batches(recipe.questions, rng)
    begin = time.perf_counter()
    for step, questions in enumerate(prefetch(islice(batches, recipe.steps)), 1):
        stats = learner.step(questions)
        if step * TOLD_STEPS % recipe.steps < TOLD_STEPS:
            seconds = time.perf_counter() - begin
            print(
                f"step {step:6} {seconds:7.1f} s  loss {stats.choices_loss:6.3f}  dropped {stats.dropped}", flush=True
            )
    return judged | {"after": learner.judge(held_out)}
