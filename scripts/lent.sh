# shellcheck shell=bash
# shellcheck disable=SC2154
# Finds or completes a Python on a lent machine, whose torch sees a GPU; scripts/setup.sh has to be sourced first.
# Sourcing this file only defines names: wheels is the folder of the wheels, and site where packages are installed.

wheels=$root/.whl site=${TMPDIR:-/tmp}/longtake-trial/site
export PYTHONUNBUFFERED=1 PYTHONPATH=$site:$root${PYTHONPATH:+:$PYTHONPATH}

# Succeeds where torch sees a GPU, or is there at all if the words after the interpreter say --tiny.
has_torch() {
    "$1" -c 'import sys, torch; sys.exit(not (torch.cuda.is_available() or "--tiny" in sys.argv))' \
        "${@:2}" 2>/dev/null
}

# missing PYTHON REQUIREMENT...: prints the packages that are needed, directly or through others, and not installed.
missing() {
    "$1" - "$root" "${@:2}" <<'LIST'
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as name_of

root = Path(sys.argv[1])
pins = dict(line.split("==") for line in (root / "constraints.txt").read_text().split())
pins = {name_of(name): version for name, version in pins.items()}
waiting = sys.argv[2:]
seen, found = set(), []
while waiting:
    wanted = Requirement(waiting.pop())
    name = name_of(wanted.name)
    if name in seen or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
        continue
    seen.add(name)
    try:
        waiting += distribution(name).requires or []
    except PackageNotFoundError:
        found.append(f"{name}=={pins[name]}" if name in pins else name)
print(*sorted(found))
LIST
}

# install PACKAGE...: installs packages beside python3, without their needs.
install() {
    local source=()
    [[ ! -d $wheels ]] || source=(--no-index --find-links "$wheels")
    "$python" -m pip install --quiet --retries 0 --no-deps --no-compile --target "$site" "${source[@]}" "$@" || true
}

# complete REQUIREMENT...: installs what python3 lacks of them. The needs of a package are known only once it is there.
complete() {
    local lacking before="" package
    while lacking=$(missing python3 "$@") && [[ -n $lacking && $lacking != "$before" ]]; do
        before=$lacking
        say "Installing into $site: $lacking"
        for package in $lacking; do
            [[ ! -d $wheels ]] || package=${package%%==*} # the version is that of the wheel
            install "$package"
        done
    done
    [[ -z $lacking ]] || say "Not to be had, so what needs them is skipped or fails: $lacking"
}
