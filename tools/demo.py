"""Trains a small image-text model on handwritten digits and their names in twelve languages, without a GPU.

The images and the names of one digit attract each other within a batch and everything else is pushed apart: that is all
the model is told. Run it with `tools/demo`, which sets up first.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import trange

import uform

Images = NDArray[np.uint8]  # [n, 8, 8]
Digits = NDArray[np.int64]  # [n]
Vectors = NDArray[np.float32]  # [n, hidden]

NAMES = {
    "English": "zero one two three four five six seven eight nine",
    "German": "null eins zwei drei vier fünf sechs sieben acht neun",
    "Spanish": "cero uno dos tres cuatro cinco seis siete ocho nueve",
    "Turkish": "sıfır bir iki üç dört beş altı yedi sekiz dokuz",
    "Swahili": "sifuri moja mbili tatu nne tano sita saba nane tisa",
    "Greek": "μηδέν ένα δύο τρία τέσσερα πέντε έξι επτά οκτώ εννέα",
    "Russian": "ноль один два три четыре пять шесть семь восемь девять",
    "Georgian": "ნული ერთი ორი სამი ოთხი ხუთი ექვსი შვიდი რვა ცხრა",
    "Arabic": "صفر واحد اثنان ثلاثة أربعة خمسة ستة سبعة ثمانية تسعة",
    "Hindi": "शून्य एक दो तीन चार पाँच छह सात आठ नौ",
    "Chinese": "零 一 二 三 四 五 六 七 八 九",
    "Korean": "영 일 이 삼 사 오 육 칠 팔 구",
}
TEXTS = " ".join(NAMES.values()).split()  # language by language
TEXT_DIGITS = np.tile(np.arange(10), len(NAMES))  # the digit that each of them names
IMAGES_PER_STEP, LANGUAGES_PER_STEP = 64, 3
REQUIRED_ACCURACY = 0.95


def relate(digits: Digits) -> uform.Relations:
    """Every item attracts all others of its digit: compressed sparse rows, in which each pair stands both ways."""
    same = digits[:, None] == digits[None, :]
    np.fill_diagonal(same, False)
    offsets = np.append(0, np.cumsum(same.sum(axis=1)))
    return uform.Relations(attract=(offsets.astype(np.uintp), np.nonzero(same)[1].astype(np.uint32)))


def step(trainer: uform.Trainer, images: Images, digits: Digits, rng: np.random.Generator) -> uform.TrainerStepStats:
    """One optimizer step over random images, noisy lest they be learned by heart, and names in random languages."""
    drawn = rng.choice(len(images), IMAGES_PER_STEP, replace=False)
    languages = rng.choice(len(NAMES), LANGUAGES_PER_STEP, replace=False)
    texts = (10 * languages[:, None] + np.arange(10)).ravel()
    modalities = [uform.Modality.IMAGE] * len(drawn) + [uform.Modality.TEXT] * len(texts)
    noisy = np.clip(images[drawn] + rng.normal(0, 32, (len(drawn), 8, 8)), 0, 255).astype(np.uint8)
    contents = [*noisy, *(TEXTS[text] for text in texts)]
    relations = relate(np.concatenate([digits[drawn], TEXT_DIGITS[texts]]))
    stats = uform.TrainerStepStats()
    trainer.step(modalities, contents, relations=relations, stats=stats)
    return stats


def train(executor: uform.Executor, images: Images, digits: Digits, steps: int, seed: int, checkpoint: Path) -> None:
    """Trains, saves, and resumes the same run from the file for one more step."""
    trainer = uform.Trainer.init_ram(
        executor,
        depth=3,
        hidden=64,
        objective=uform.Objective.CONTRASTIVE,
        batch=uform.BatchShape(max_rows_per_device=32, max_columns_per_row=64, image=(4, 1)),  # 4 x 4 patches of grey
        contrastive=uform.Contrastive(pair_loss=uform.PairLossForm.BALANCED, max_edges_per_device=10_000),
        schedule=uform.Schedule(learning_rate=1e-3, steps=steps),
        seed=seed,
    )
    rng = np.random.default_rng(seed)
    with trange(steps, desc="training", unit="step") as bar:
        for _ in bar:
            bar.set_postfix(loss=f"{step(trainer, images, digits, rng).loss:.3f}")
    trainer.save(checkpoint)
    resumed = uform.Trainer.init_ram(executor, resume=checkpoint)
    stats = step(resumed, images, digits, rng)
    resumed.save(checkpoint)
    print(f"resumed {checkpoint} for step {stats.step}: loss {stats.loss:.3f}")


def evaluate(images: Vectors, texts: Vectors, digits: Digits) -> float:
    """Prints how well images and names find each other, and answers the zero-shot accuracy."""
    cosines = images @ texts.T  # of unit vectors
    guesses = cosines.reshape(len(images), len(NAMES), 10).mean(axis=1).argmax(axis=1)  # the mean is over languages
    accuracy = float(np.mean(guesses == digits))
    print(f"zero-shot accuracy on {len(images)} held-out digits: {accuracy:.1%}")
    print(f"recall@1 from image to name: {np.mean(TEXT_DIGITS[cosines.argmax(axis=1)] == digits):.1%}")
    print(f"recall@1 from name to image: {np.mean(digits[cosines.argmax(axis=0)] == TEXT_DIGITS):.1%}")
    return accuracy


def draw(pixels: Images, images: Vectors, texts: Vectors, digits: Digits, path: Path) -> None:
    """Draws the held-out digits nearest to some names, and the principal plane of all embeddings."""
    figure = Figure(figsize=(15, 8), layout="constrained")
    ((left, right),) = figure.subfigures(1, 2, squeeze=False, width_ratios=[2, 3])
    left.suptitle("The five held-out digits nearest to a name")
    shown = [12, 34, 56, 67, 78, 9, 41, 53]
    for row, text in zip(left.subplots(len(shown), 5), shown, strict=True):
        row[0].set_ylabel(f"{TEXTS[text]}\n{list(NAMES)[text // 10]}", rotation=0, ha="right", va="center")
        for axes, image in zip(row, np.argsort(-images @ texts[text])[:5], strict=True):
            axes.imshow(pixels[image], cmap="gray_r")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_color("black" if digits[image] == text % 10 else "red")
    axes = right.subplots()
    axes.set(title="Held-out images (dots) and names (stars) in the principal plane", xticks=[], yticks=[])
    centre, plane = images.mean(axis=0), np.linalg.svd(images - images.mean(axis=0))[2][:2].T
    dots, stars = (images - centre) @ plane, (texts - centre) @ plane
    axes.scatter(*dots.T, c=digits, cmap="tab10", s=12, alpha=0.6)
    axes.scatter(*stars.T, c=TEXT_DIGITS, cmap="tab10", s=60, marker="*", edgecolors="black", linewidths=0.5)
    for digit in range(10):
        where = np.median(stars[digit::10], axis=0)
        axes.annotate(f"{digit} {TEXTS[digit]}", where, (0, 16), textcoords="offset points", ha="center", weight="bold")
    figure.savefig(path, dpi=110)


def main(arguments: Sequence[str] | None = None) -> str | None:
    """Answers what went wrong, which makes the exit status 1: the model learned too little."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0, help="of the split, the batches and the initial weights")
    parser.add_argument("--output", type=Path, default=Path("demo"), help="folder of the checkpoint and the picture")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    checkpoint, picture = options.output / "digits.safetensors", options.output / "digits.png"

    pixels, digits = load_digits(return_X_y=True)
    pixels = np.rint(pixels.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    seen, held, seen_digits, held_digits = train_test_split(pixels, digits, stratify=digits, random_state=options.seed)
    executor = uform.Executor.for_ram()
    train(executor, seen, seen_digits, options.steps, options.seed, checkpoint)
    model = uform.Model.init_ram(executor, checkpoint)
    images = np.asarray(model.embed([uform.Modality.IMAGE] * len(held), list(held)))
    texts = np.asarray(model.embed([uform.Modality.TEXT] * len(TEXTS), TEXTS))
    accuracy = evaluate(images, texts, held_digits)
    draw(held, images, texts, held_digits, picture)
    print(f"wrote {checkpoint} and {picture}")
    return f"accuracy below the {REQUIRED_ACCURACY:.0%} required" if accuracy < REQUIRED_ACCURACY else None


if __name__ == "__main__":
    raise SystemExit(main())
