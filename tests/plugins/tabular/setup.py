"""Builds the modality of tabular rows."""

from Cython.Build import cythonize
from setuptools import Extension, setup

import uform

extension = Extension("uform_tabular", ["uform_tabular.pyx"], include_dirs=[uform.get_include()])

setup(
    name="uform-tabular",
    version="1.0.0",
    ext_modules=cythonize([extension], include_path=[uform.get_cython_path()], language_level=3),
    entry_points={"uform.modalities": ["tabular = uform_tabular:plugin"]},
)
