# shellcheck shell=bash
# The functions that webui.sh and test.sh share: find a Python, choose torch's build, make .venv, install.
# Sourcing this file only defines names.

root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
venv=$root/.venv
# This file lies in .venv while packages are written. A set-up that finds it was interrupted and starts over.
unfinished=$venv/.longtake-unfinished
kfd=/dev/kfd

# This is the only place that names the torch wheel index, and the builds of torch 2.13 there.
torch_indexes=https://download.pytorch.org/whl
declare -A torch_folder=([rocm]=rocm7.2 [cuda]=cu130 [cpu]=cpu)
# Gigabytes that a set-up needs while it runs: downloads, unpacked packages, and a margin.
declare -A needed_gb=([rocm]=20 [cuda]=12 [cpu]=3)

say() { printf '%s\n' "$*"; }

# Ends the set-up with one sentence.
fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

version_of() { "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null; }

new_enough() {
    local major minor
    IFS=. read -r major minor _ <<<"$1"
    ((major > 3 || (major == 3 && minor >= 11)))
}

# Prints the interpreter for .venv: $PYTHON, or the newest one that can make virtual environments.
find_python() {
    local candidate version old="" bare="" candidates=(python3.14 python3.13 python3.12 python3.11 python3)
    if [[ -n ${PYTHON:-} ]]; then
        candidates=("$PYTHON")
    fi
    for candidate in "${candidates[@]}"; do
        version=$(version_of "$candidate") || continue
        if ! new_enough "$version"; then
            old=${old:-$version}
        elif ! "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            bare=${bare:-$version}
        else
            command -v "$candidate"
            return
        fi
    done
    if [[ -n $bare ]]; then
        fail "Python $bare cannot make virtual environments: install its venv module" \
            "(on Debian and Ubuntu: apt install python${bare%.*}-venv) and start again."
    elif [[ -n $old ]]; then
        fail "Longtake needs Python 3.11 or newer, but found $old: install a newer one," \
            "or name one with PYTHON=/path/to/python, and start again."
    elif [[ -n ${PYTHON:-} ]]; then
        fail "PYTHON=$PYTHON cannot be run: set it to a Python 3.11 or newer and start again."
    fi
    fail "Longtake needs Python 3.11 or newer, but found none: install it" \
        "(on Debian and Ubuntu: apt install python3 python3-venv) and start again."
}

# Prints rocm, cuda or cpu, whichever this machine can run.
find_hardware() {
    if [[ -e $kfd || $(rocminfo 2>/dev/null) == *gfx* ]]; then
        echo rocm
    elif nvidia-smi -L >/dev/null 2>&1; then
        echo cuda
    else
        echo cpu
    fi
}

# Sets hardware, torch_index and torch_version, the last two from the environment or else from the hardware.
choose_torch() {
    hardware=$(find_hardware)
    default_version=$(sed -n 's/^torch==//p' "$root/constraints.txt")
    torch_version=${TORCH_VERSION:-$default_version}
    torch_index=${TORCH_INDEX_URL:-$torch_indexes/${torch_folder[$hardware]}}
    torch_index=${torch_index%/}
}

# Succeeds when the index answers within a few seconds. A refusal (401, 407) or a certificate that only pip's
# configuration knows counts as an answer, since pip can judge it better.
index_answers() {
    timeout 8 "$1" -I - "$2/torch/" <<'PROBE'
import ssl, sys, urllib.error, urllib.request

try:
    urllib.request.urlopen(sys.argv[1], timeout=5).close()
except urllib.error.HTTPError as error:
    sys.exit(error.code not in (401, 407))
except urllib.error.URLError as error:
    sys.exit(not isinstance(error.reason, (ssl.SSLError, IsADirectoryError)))
except OSError:
    sys.exit(1)
except Exception:  # only pip understands some addresses, such as those with a password
    sys.exit(0)
PROBE
}

check_space() {
    local free used=0
    { read -r _ && read -r _ _ _ free _; } < <(df -Pk "$root")
    if [[ -d $venv ]]; then
        read -r used _ < <(du -sk "$venv")
    fi
    if ((free + used < needed_gb[$hardware] * 1000 * 1000)); then
        fail "The set-up needs about ${needed_gb[$hardware]} GB for torch ($hardware), but $root has only" \
            "$((free / 1000 / 1000)) GB free: free some space and start again."
    fi
}

# attempt WHAT COMMAND...: runs a step of the set-up. Its messages are shown only when it fails.
attempt() {
    local what=$1 complaints
    shift
    { complaints=$("$@" 2>&1 >&3 3>&-) && return; } 3>&1
    case $complaints in
        *"No space left on device"* | *"Errno 28"* | *"Disk quota exceeded"*)
            fail "The disk became full while $what (about ${needed_gb[$hardware]} GB are needed):" \
                "free some space and start again."
            ;;
    esac
    rm -f "$unfinished" # pip ended in an orderly way, so that the next start can continue from here
    case $complaints in
        *"Failed to establish a new connection"* | *NameResolutionError* | *"timed out"* | *"Max retries exceeded"*)
            fail "The package index could not be reached while $what: check the network and start again."
            ;;
    esac
    tail -n 20 <<<"$complaints" >&2
    fail "The set-up failed while $what: correct what the lines above report, and start again."
}

pip_install() {
    mkdir -p "$venv/tmp" # downloads are unpacked beside their target: /tmp may be small
    TMPDIR=$venv/tmp PIP_NO_INPUT=1 PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 \
        "$venv/bin/python" -I -m pip install "$@"
}

install_torch() {
    local source=(--index-url "$torch_index") from=$torch_index
    if ! index_answers "$venv/bin/python" "$torch_index"; then
        source=() from="the default index"
        say "The torch index $torch_index cannot be reached. Taking torch $torch_version from the default" \
            "index, whose build may not suit this machine. To try again later, remove .venv."
    fi
    say "Installing torch $torch_version from $from ..."
    # Its dependencies follow from requirements.txt, in the versions of constraints.txt.
    attempt "installing torch $torch_version" pip_install --no-deps "${source[@]}" "torch==$torch_version"
    printf '%s\n' "${source[@]/--index-url/--extra-index-url}" >"$venv/torch-source"
}

# Prints the pinned versions, with torch at the build that is installed.
write_constraints() {
    sed '/^torch==/d' "$root/constraints.txt"
    "$venv/bin/python" -I -c 'from importlib.metadata import version; print("torch==" + version("torch"))'
}

install_requirements() {
    local source=()
    mapfile -t source < <(grep . "$venv/torch-source")
    say "Installing the other packages ..."
    write_constraints >"$venv/constraints.txt"
    attempt "installing requirements.txt" \
        pip_install --quiet -r "$root/requirements.txt" -c "$venv/constraints.txt" "${source[@]}"
}

# Prints the requirements of the extra `test`, one a line.
test_requirements() {
    sed -n '/^test = \[/,/^\]/s/^ *"\(.*\)",$/\1/p' "$root/pyproject.toml"
}

install_test_requirements() {
    local packages
    mapfile -t packages < <(test_requirements)
    say "Installing the packages for the tests ..."
    attempt "installing the packages for the tests" \
        pip_install --quiet -c "$venv/constraints.txt" "${packages[@]}"
}

# Prints what a layer of .venv is made from. A layer is complete when its stamp contains the same text.
recipe_of() {
    case $1 in
        torch) say "$hardware $default_version $torch_index $torch_version" ;;
        requirements) cat "$root/requirements.txt" "$root/constraints.txt" ;;
        test_requirements) test_requirements && cat "$root/constraints.txt" ;;
    esac
}

is_complete() { [[ -e $venv/.longtake-$1 && $(recipe_of "$1") == "$(<"$venv/.longtake-$1")" ]]; }

# A torch that TORCH_INDEX_URL or TORCH_VERSION once selected stays until another one is selected.
keep_chosen_torch() {
    local made_for made_default made_index made_version
    [[ -e $venv/.longtake-torch ]] || return 0
    read -r made_for made_default made_index made_version <"$venv/.longtake-torch"
    if [[ "$made_for $made_default" == "$hardware $default_version" ]]; then
        [[ -n ${TORCH_INDEX_URL:-} ]] || torch_index=$made_index
        [[ -n ${TORCH_VERSION:-} ]] || torch_version=$made_version
    fi
}

all_complete() {
    local layer
    [[ ! -e $unfinished && -x $venv/bin/python ]] || return
    if [[ -n ${PYTHON:-} && $(version_of "$PYTHON") != "$(version_of "$venv/bin/python")" ]]; then
        return 1
    fi
    for layer in "$@"; do
        is_complete "$layer" || return
    done
}

make_venv() {
    local python
    python=$(find_python)
    check_space
    say "Making $venv with Python $(version_of "$python") ..."
    rm -rf "$venv"
    mkdir "$venv"
    touch "$unfinished"
    attempt "making .venv" "$python" -m venv "$venv"
}

# Succeeds when packages can be added to the existing .venv.
can_go_on() {
    local version
    [[ ! -e $unfinished ]] || return
    version=$(version_of "$venv/bin/python") && new_enough "$version" || return
    [[ -z ${PYTHON:-} || $version == "$(version_of "$PYTHON")" ]] || return
    [[ ! -e $venv/.longtake-torch ]] || is_complete torch || return
    "$venv/bin/python" -I -c 'import pip' 2>/dev/null
}

# set_up LAYER...: completes these layers of .venv (torch, requirements, test_requirements), and does nothing
# if they are complete.
set_up() {
    local layer
    choose_torch
    keep_chosen_torch
    all_complete "$@" && return
    trap 'say "Interrupted. The next start continues the set-up."; exit 130' INT
    exec 9<"$root"
    if ! flock --nonblock 9; then
        say "Waiting for another set-up of $root ..."
        flock 9
    fi
    if ! all_complete "$@"; then
        can_go_on || make_venv
        touch "$unfinished"
        for layer in "$@"; do
            is_complete "$layer" && continue
            rm -f "$venv/.longtake-$layer"
            "install_$layer"
            recipe_of "$layer" >"$venv/.longtake-$layer"
        done
        rm -rf "$venv/tmp" "$unfinished"
    fi
    exec 9<&-
    trap - INT
}
