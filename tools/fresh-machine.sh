#!/bin/sh
# Try the make targets on a machine with only Debian 12 or 13, python3, make and git:
#
#     tools/fresh-machine.sh 12|13 [--changes] [TARGET...]      (default: demo setup)
#
# The machine is a folder that debootstrap fills and that is removed at the end. Each target runs in a
# clean clone, as an ordinary user and as root; --changes adds uncommitted changes. This machine's
# access to packages (mirror, proxies, certificates, pip's configuration) is carried over.
# Needs root; debootstrap is installed if it is missing.
set -eu
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*"; }
run() { say "+ $*"; "$@"; }

debian=${1-}
case $debian in
12) release=bookworm ;;
13) release=trixie ;;
*) say "choose a Debian: make fresh DEBIAN=12, or 13"; exit 1 ;;
esac
shift
changes=no
[ "${1-}" != --changes ] || { changes=yes; shift; }
[ $# -gt 0 ] || set -- demo setup
[ "$(id -u)" -eq 0 ] || { say "only root can do this: sudo make fresh"; exit 1; }

if ! command -v debootstrap >/dev/null; then
    run apt-get update
    run apt-get install -y --no-install-recommends debootstrap
fi

# /var/tmp rather than /tmp: the latter may forbid devices or live in memory.
root=$(mktemp -d /var/tmp/duly-fresh-XXXXXX)
chmod 755 "$root"
mounted=
remove() {
    for folder in $mounted; do umount -l "$root$folder" || true; done
    if grep -q " $root/" /proc/mounts; then
        say "$root was not removed: something is still mounted in it"
    else
        rm -rf --one-file-system "$root"
    fi
}
trap remove EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mount_at() { # FOLDER, then the arguments of mount
    folder=$1
    shift
    mkdir -p "$root$folder"
    mount "$@" "$root$folder"
    mounted="$folder $mounted"
}

# The machine --------------------------------------------------------------------------------------

# A mirror of one Debian release has the others too; other systems have none.
here=$(. /etc/os-release && [ "$ID" = debian ] && echo "${VERSION_CODENAME-}") || true
mirror=${here:+$(apt-get indextargets --format '$(REPO_URI)' "Codename: $here" \
    'Created-By: Packages' 2>/dev/null | head -n 1)}
eval "$(apt-config shell proxy Acquire::http::Proxy)"
[ -z "${proxy-}" ] || export http_proxy="${http_proxy-$proxy}"

began=$(date +%s)
# An empty mirror lets debootstrap choose.
run debootstrap --variant=minbase --include=python3,make,git "$release" "$root" ${mirror:+"$mirror"} \
    >"$root.log" 2>&1 || { tail -n 20 "$root.log"; rm -f "$root.log"; exit 1; }
rm -f "$root.log"
say "=== a Debian $debian with python3, make and git: $(($(date +%s) - began)) s"

mount_at /proc -t proc proc
mount_at /dev/shm -t tmpfs tmpfs
mount_at /dev/pts -t devpts -o ptmxmode=666 devpts
chroot "$root" useradd --create-home tester

# How packages are reached -------------------------------------------------------------------------

cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
apt-config dump | grep -E '^Acquire::(http|https|ftp|Retries|Check-Valid-Until)' \
    >"$root/etc/apt/apt.conf.d/99as-outside" || true
settings=$root/etc/as-outside.sh
env | grep -iE '^(PIP_[A-Z_]+|(https?|no|all)_proxy)=' |
    sed "s/'/'\\\\''/g; s/^\([^=]*\)=\(.*\)$/export \1='\2'/" >"$settings"
# Under a different name: the package ca-certificates would overwrite it.
bundle=/etc/ssl/certs/ca-certificates.crt
if [ -f "$bundle" ]; then
    cp -L "$bundle" "$root/etc/as-outside.crt"
    say "export PIP_CERT=/etc/as-outside.crt SSL_CERT_FILE=/etc/as-outside.crt" >>"$settings"
    say "export NODE_EXTRA_CA_CERTS=/etc/as-outside.crt" >>"$settings"
fi
cp -L /etc/pip.conf "$root/etc/" 2>/dev/null || true
for own in "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf"; do
    [ -f "$own" ] || continue
    for home in root home/tester; do
        mkdir -p "$root/$home/.config/pip"
        cp "$own" "$root/$home/.config/pip/pip.conf"
    done
done
# Folders with packages that pip's configuration may name.
for folder in $(cat "$settings" /etc/pip.conf "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf" \
    2>/dev/null | grep -oE "(^|[=' ]|file://)/[^ ,']+" | sed "s,^[^/]*,,; s,^//,," |
    cut -d/ -f1-3 | grep -v '^/etc/' | sort -u); do
    [ ! -d "$folder" ] || [ -d "$root$folder" ] || mount_at "$folder" --bind -o ro "$folder"
done

# The goals ----------------------------------------------------------------------------------------

inside() { # USER, then a command, in the user's home
    user=$1
    shift
    home=/root
    [ "$user" = root ] || home=/home/$user
    chroot --userspec="$user:$user" "$root" env -i HOME="$home" LANG=C.UTF-8 \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        sh -c '. /etc/as-outside.sh && cd && "$@"' sh "$@"
}

clone() { # USER
    home=$root/root
    [ "$1" = root ] || home=$root/home/$1
    git clone --quiet . "$home/duly"
    if [ "$changes" = yes ]; then
        git ls-files --cached --others --exclude-standard -z |
            tar --create --null --files-from=- --ignore-failed-read 2>/dev/null |
            tar --extract --directory "$home/duly"
    fi
    chroot "$root" chown -R "$1:$1" "${home#"$root"}/duly"
}

goal() { # USER GOAL
    say "=== $1: make $2"
    began=$(date +%s)
    inside "$1" make -C duly --no-print-directory "$2"
    say "=== $1: make $2: passed in $(($(date +%s) - began)) s"
}

clone root
clone tester

say "=== tester, without python3-venv: make $1"
if said=$(inside tester make -C duly --no-print-directory "$1" 2>&1); then
    say "it passed, although no virtual environment could be created"
    exit 1
fi
say "$said"
case $said in
*"apt-get install -y python3-venv"*) ;;
*) say "it does not say which command to run"; exit 1 ;;
esac
[ ! -e "$root/home/tester/duly/.venv" ] || { say "it has left a .venv"; exit 1; }

before=$(chroot "$root" dpkg-query -f '${Package} ' -W)
for each; do
    goal root "$each"
    goal tester "$each"
done
say "=== installed by apt-get:"
for package in $(chroot "$root" dpkg-query -f '${Package} ' -W); do
    case " $before" in *" $package "*) ;; *) printf ' %s' "$package" ;; esac
done
say ""
for program in node psql postgres; do
    ! chroot "$root" sh -c "command -v $program" || { say "$program was installed"; exit 1; }
done
say "=== passed"
