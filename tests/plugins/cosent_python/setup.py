"""Objectives in Python: nothing is compiled."""

from setuptools import setup

setup(
    name="uform-cosent-python",
    version="1.0.0",
    py_modules=["uform_cosent_numpy", "uform_cosent_torch"],
    entry_points={
        "uform.objectives": [
            "cosent_numpy = uform_cosent_numpy:CoSENT",
            "cosent_torch = uform_cosent_torch:CoSENT",
        ]
    },
)
