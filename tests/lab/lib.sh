# shellcheck shell=bash
# The scripts that source this file use its variables.
# shellcheck disable=SC2034
# Shared by the lab scripts: the location of the cache, the table of servers, and the differences between them.

CACHE=${ARMTRACE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/armtrace}
LAB=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# The version of the prepared data directory. Raise it whenever its tables or settings change.
TEMPLATE=1

die() { echo "${0##*/}: $*" >&2; exit 1; }
note() { echo "${0##*/}: $*" >&2; }
need_root() { [ "$(id -u)" = 0 ] || die "must run as root: try sudo $0"; }

# Prints the rows of the table of servers, without its comments.
server_rows() { sed '/^#/d; /^$/d' "$LAB/servers"; }
# list_servers SET: prints the names of the servers in a set, or in "all".
list_servers() { server_rows | awk -v set="$1" 'set == "all" || $4 == set { print $1 }'; }

# describe_server SERVER: sets the columns of the server's row, and its paths: home, template and, in home, daemon. A
# Maven artifact is a release and never changes. Packages come from Debian's unstable suite and three stable ones,
# verified by apt's signatures. If rooted is 1, the server's folder is a root file system, because the server needs
# different libraries from this machine's.
describe_server() {
    local name folder=$1
    rooted=0
    # shellcheck disable=SC2034
    read -r name flavor version set daemon source what sha256 < <(server_rows | awk -v name="$1" '$1 == name') ||
        die "no such server: $1 (available: $(list_servers all | xargs))"
    case $source in
    debootstrap | root) rooted=1 ;;
    same) folder=$what ;;
    esac
    home=$CACHE/servers/$folder
    template=$CACHE/data/$folder
}

# at_least VERSION: succeeds if the described server has that version or a later one.
at_least() { [ "$(printf '%s\n' "$1" "$version" | sort --version-sort | head -n 1)" = "$1" ]; }

# lock_cache NAME: lets one process at a time create a cached item. The others wait and then find it done.
lock_cache() {
    mkdir -p "$CACHE"
    exec 8>"$CACHE/.lock-$1"
    flock 8
}
unlock_cache() { exec 8>&-; }

# maven ARTIFACT SHA256 FOLDER: downloads a Maven artifact into a new folder, verifies it, and sets archive to its path.
maven() {
    mvn --batch-mode --quiet -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy \
        "-Dartifact=$1" "-DoutputDirectory=$3" >&2
    archive=$(find "$3" -type f)
    check_sha256 "$1" "$2"
}
# check_sha256 NAME SHA256: fails unless archive has this checksum.
check_sha256() { echo "$2  $archive" | sha256sum --check --quiet >&2 || die "$1 has the wrong SHA-256 checksum"; }
