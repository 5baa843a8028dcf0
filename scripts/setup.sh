# shellcheck shell=bash
# The functions that webui.sh and test.sh share: find a Python, choose torch's build, make .venv, install.
# Sourcing this file only defines names.

root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
venv=$root/.venv
# This file lies in .venv while packages are written. A set-up that finds it was interrupted and starts over.
unfinished=$venv/.longtake-unfinished
# The folder that holds /sys, /proc and /dev; a test puts those of another machine there.
machine=""

# This is the only place that names indexes of torch, and their builds of torch 2.13. Read in November 2026:
# - torch's own build for ROCm has kernels for the cards in `torch_first` (unsloth's pull request 9829).
# - AMD's builds have a package for each card, gfx1010 to 1036, 1100 to 1103, 1150 to 1153, 1200 and 1201 among
#   them (TheRock's RELEASES.md), with torch 2.13.0 for ROCm 10.0.0. They come with their dependencies.
# No source compares the two on one card. Chips with shared memory and RDNA4 take AMD's build first, as their
# owners do; RDNA2, RDNA3 and Instinct take torch's. If the first one cannot be had or does not import, the other
# is taken.
torch_indexes=https://download.pytorch.org/whl
amd_index=https://stable.repo.amd.com/rocm/whl-next
amd_version=+rocm10.0.0
declare -A torch_folder=([rocm]=rocm7.2 [cuda]=cu130 [cpu]=cpu)
torch_first=" gfx908 gfx90a gfx942 gfx950 gfx1030 gfx1100 gfx1101 gfx1102 "
# The graphics of processors, and GPUs of no use: those without a build, and that of a desktop Ryzen, whose two compute
# units are slower than the processor (as in diffusers_helper/machine/sysfs.py).
integrated=" gfx90c gfx1013 gfx1033 gfx1035 gfx1036 gfx1103 gfx1150 gfx1151 gfx1152 gfx1153 "
unusable=" gfx803 gfx90c gfx1013 gfx1036 "
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

# Prints the gfx names of the AMD cards, from the kernel or, where it lists none (WSL), from ROCm's own program.
amd_cards() {
    local version nodes=$machine/sys/class/kfd/kfd/topology/nodes
    if [[ ! -e $machine/dev/kfd ]]; then
        rocminfo 2>/dev/null | sed -n 's/^ *Name: *\(gfx[0-9a-f]*\).*/\1/p'
        return
    fi
    sed -n 's/^gfx_target_version \([1-9]\)/\1/p' "$nodes"/*/properties 2>/dev/null | while read -r version; do
        printf 'gfx%d%x%x\n' $((version / 10000)) $((version / 100 % 100)) $((version % 100))
    done
}

has_nvidia() {
    [[ -d $machine/proc/driver/nvidia/gpus || -e $machine/dev/nvidia0 ]] || nvidia-smi -L >/dev/null 2>&1
}

# Prints rocm with the cards to use, cuda or cpu, whichever this machine can run. A card of its own decides, also
# beside the graphics of a processor, which nearly every Ryzen has.
find_hardware() {
    local card own="" inside=""
    for card in $(amd_cards); do
        [[ $unusable != *" $card "* ]] || continue
        if [[ $integrated == *" $card "* ]]; then
            inside+=" $card"
        else
            own+=" $card"
        fi
    done
    if [[ -n $own ]]; then
        echo "rocm$own"
    elif has_nvidia; then
        echo cuda
    elif [[ -n $inside ]]; then
        echo "rocm$inside"
    else
        echo cpu
    fi
}

# Sets hardware and cards, and torch_builds, of which the first that works is taken: names of torch_folder, amd, or
# the address of an index from the environment.
choose_torch() {
    local card
    read -r hardware cards <<<"$(find_hardware)"
    # ROCm takes the card for another one, whose kernels alone it loads then.
    if [[ -n $cards && ${HSA_OVERRIDE_GFX_VERSION:-} =~ ^([0-9]+)\.([0-9]+)\.([0-9]+)$ ]]; then
        printf -v card 'gfx%d%x%x' "${BASH_REMATCH[@]:1}"
        [[ " $cards " == *" $card "* ]] || cards+=" $card"
    fi
    default_version=$(sed -n 's/^torch==//p' "$root/constraints.txt")
    torch_version=${TORCH_VERSION:-$default_version}
    torch_builds=$hardware
    if [[ $hardware == rocm ]]; then
        torch_builds="rocm amd"
        for card in $cards; do
            [[ $torch_first == *" $card "* ]] || torch_builds="amd rocm"
        done
    fi
    [[ -z ${TORCH_INDEX_URL:-} ]] || torch_builds=${TORCH_INDEX_URL%/}
}

# Prints the address of a build's index.
index_of() {
    case $1 in
        amd) echo "$amd_index" ;;
        */*) echo "$1" ;;
        *) echo "$torch_indexes/${torch_folder[$1]}" ;;
    esac
}

# Prints what pip installs for a build.
torch_of() {
    local card devices=""
    if [[ $1 == amd ]]; then
        for card in $cards; do
            devices+=,device-$card
        done
        devices=${devices:-,device-all}
        echo "torch[${devices#,}]==$torch_version$amd_version"
    else
        echo "torch==$torch_version"
    fi
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

# Installs a build of torch and imports it, which needs the packages beside it.
try_build() {
    local index=$1 options=()
    # An index from the environment may have torch alone. Its dependencies then come with requirements.txt.
    [[ $2 != */* ]] || options+=(--no-deps)
    [[ $2 == "${torch_builds%% *}" ]] || options+=(--force-reinstall) # the same version of another build is there
    say "Installing torch $torch_version from $index ..."
    attempt "installing torch $torch_version" pip_install "${options[@]}" --index-url "$index" "$(torch_of "$2")"
    # This may hang where the card cannot be used (PyTorch's issue 189110).
    [[ $2 == */* ]] || attempt "importing torch from $index" timeout 600 "$venv/bin/python" -I -c "import torch"
    echo "--extra-index-url $index" >"$venv/torch-source"
}

install_torch() {
    local build index
    if [[ $hardware != cuda ]] && grep -qsx 0x10de "$machine"/sys/class/drm/card*/device/vendor; then
        say "An NVIDIA card is there, but its driver is not. To use it, install the driver and start again."
    fi
    for build in $torch_builds; do
        index=$(index_of "$build")
        if ! index_answers "$venv/bin/python" "$index"; then
            say "The torch index $index cannot be reached."
        elif [[ $build == "${torch_builds##* }" ]]; then
            try_build "$index" "$build"
            return
        elif (try_build "$index" "$build"); then
            return
        else
            touch "$unfinished"
            say "Taking another build of torch instead."
        fi
    done
    say "Taking torch $torch_version from the default index, whose build may not suit this machine. To try again" \
        "later, remove .venv."
    attempt "installing torch $torch_version" pip_install --no-deps "torch==$torch_version"
    echo >"$venv/torch-source"
}

# Prints the pinned versions, with torch at the build that is installed.
write_constraints() {
    sed '/^torch==/d' "$root/constraints.txt"
    "$venv/bin/python" -I -c 'from importlib.metadata import version; print("torch==" + version("torch"))'
}

install_requirements() {
    local source=()
    read -ra source <"$venv/torch-source" || true
    say "Installing the other packages ..."
    write_constraints >"$venv/constraints.txt"
    attempt "installing requirements.txt" \
        pip_install --quiet -r "$root/requirements.txt" -c "$venv/constraints.txt" "${source[@]}"
    # It is optional, and asks for a torchvision of the same build as torch, which only networks for faces need.
    pip_install --quiet --no-deps spandrel einops -c "$venv/constraints.txt" >/dev/null 2>&1 ||
        say "spandrel, which reads networks of your own, cannot be had. Longtake works without it."
}

# The kernels only save time, so whatever hinders their installation is told and does not end the set-up.
install_kernels() {
    [[ $hardware == cuda || $cards =~ gfx1(03|1|2) ]] || return 0
    say "Installing the optional kernels ..."
    pip_install --quiet --no-deps --only-binary :all: -r "$root/requirements-kernels.txt" >/dev/null 2>&1 ||
        say "The optional kernels cannot be had for this machine. Longtake works without them."
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
        torch)
            # AMD's build has a package for each card.
            say "$hardware $default_version $(index_of "${torch_builds%% *}")" \
                "$torch_version$([[ $torch_builds != amd* ]] || echo " $cards")"
            ;;
        requirements) cat "$root/requirements.txt" "$root/constraints.txt" ;;
        kernels) say "$hardware" && cat "$root/requirements-kernels.txt" ;;
        test_requirements) test_requirements && cat "$root/constraints.txt" ;;
    esac
}

is_complete() { [[ -e $venv/.longtake-$1 && $(recipe_of "$1") == "$(<"$venv/.longtake-$1")" ]]; }

# A torch that TORCH_INDEX_URL or TORCH_VERSION once selected stays until another one is selected, and so do the
# packages for cards that are away.
keep_chosen_torch() {
    local made_for made_default made_index made_version made_cards card
    [[ -e $venv/.longtake-torch ]] || return 0
    read -r made_for made_default made_index made_version made_cards <"$venv/.longtake-torch"
    [[ "$made_for $made_default" == "$hardware $default_version" ]] || return 0
    if [[ -z ${TORCH_INDEX_URL:-} && $made_index != "$amd_index" && $made_index != "$torch_indexes"/* ]]; then
        torch_builds=$made_index
    fi
    [[ -n ${TORCH_VERSION:-} ]] || torch_version=$made_version
    for card in $cards; do
        [[ " $made_cards " == *" $card "* ]] || made_cards+=${made_cards:+ }$card
    done
    cards=$made_cards
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
    [[ ! -e $venv/.longtake-torch || $(recipe_of torch) == "$(<"$venv/.longtake-torch")"* ]] || return
    "$venv/bin/python" -I -c 'import pip' 2>/dev/null
}

# Writes the command `longtake` of this checkout, which works in any folder, unless pip has installed one.
write_command() {
    local command=$venv/bin/longtake
    [[ ! -e $command ]] || return 0
    cat >"$command.new" <<'COMMAND'
#!/usr/bin/env bash
venv=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
program='import sys; sys.path.insert(0, sys.argv.pop(1)); sys.argv[0] = "longtake"
from app.__main__ import start; start()'
exec "$venv/bin/python" -P -c "$program" "${venv%/*}" "$@"
COMMAND
    chmod +x "$command.new"
    mv "$command.new" "$command"
}

# set_up LAYER...: completes these layers of .venv (torch, requirements, kernels, test_requirements), and does nothing
# if they are complete.
set_up() {
    local layer
    choose_torch
    keep_chosen_torch
    if all_complete "$@"; then
        write_command
        return
    fi
    trap 'say "Interrupted. The next start continues the set-up."; exit 130' INT
    exec 9<"$root"
    flock --nonblock 9 || { say "Waiting for another set-up of $root ..." && flock 9; }
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
    write_command
    exec 9<&-
    trap - INT
}
