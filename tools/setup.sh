# Sourced by tools/test and tools/demo: an environment, the package built in place. Needs `root`, the tree's root.
#
# UFORM_PYTHON names an interpreter to use as it is: nothing is installed, and the package is built and imported from the tree.

say() { printf '%s\n' "$*" >&2; }

# The first Python that is new enough and runs: a version manager's stand-in may be on PATH without one behind it.
find_python() {
    local candidate
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    say "Python 3.11 or newer is needed; found: $(python3 --version 2>&1)"
    return 1
}

# Everything that decides what is installed, for one group of extras.
stamp_of() {
    {
        printf '%s\n' "$1" "${UFORM_VRAM:-}"
        cat pyproject.toml setup.py VERSION third_party/finder.py
        find plugins -name '*.py' | sort
    } | sha256sum
}

# Makes the environment $2 (.venv without) where it is missing and installs the extras of group $1 where they have changed;
# then builds what has changed. Sets `python`, and puts the environment's programs on PATH.
set_up() {
    local group=$1 environment=${2:-.venv} base stamp
    if [ -n "${UFORM_PYTHON:-}" ]; then
        python=$UFORM_PYTHON
        # plugins/ is installed as uform_plugins: here it is found under that name through a link.
        mkdir -p build/importable
        ln -sfn "$root/plugins" build/importable/uform_plugins
        export PYTHONPATH="$root:$root/build/importable${PYTHONPATH:+:$PYTHONPATH}"
        "$python" setup.py -q build_ext --inplace
        return
    fi
    python=$root/$environment/bin/python
    export PATH="$root/$environment/bin:$PATH"
    if ! "$python" -c '' 2>/dev/null; then
        base=$(find_python)
        say "making $environment with $base"
        "$base" -m venv --clear "$environment"
    fi
    stamp=$root/$environment/stamp-$group
    if [ "$(cat "$stamp" 2>/dev/null)" != "$(stamp_of "$group")" ]; then
        say "installing what '$group' needs"
        pip_install 'setuptools>=77' 'Cython>=3.3.1'
        install_for_vram
        "$python" setup.py -q build_ext --inplace
        pip_install --no-build-isolation -e ".[$group]"
        stamp_of "$group" >"$stamp"
    else
        "$python" setup.py -q build_ext --inplace
    fi
}

pip_install() { "$python" -m pip --disable-pip-version-check install --quiet "$@"; }

# The headers of CUTLASS, and nvcc where UFORM_VRAM=1 asks for it; not what their packages want beside them for their Python parts.
install_for_vram() {
    local wanted
    wanted=$("$python" -c 'from tools.build.backend import vram_requirements; print(*vram_requirements())')
    # shellcheck disable=SC2086 # one word a requirement
    [ -z "$wanted" ] || pip_install --no-deps $wanted
}
