"""The build: one core library, then the thin Cython modules beside it.

`setup.py` and the test command call `package.build_package`; `native` builds the C++ test programs with sanitizers.
Reading order: `switches`, `compilers`, `jobs`, `library`, `extensions`, `package`.
"""
