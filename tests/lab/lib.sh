# shellcheck shell=bash
# Its variables are used by the scripts that source it.
# shellcheck disable=SC2034
# What the lab scripts share: where things are cached, which servers there are, and what differs between them.

CACHE=${ARMTRACE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/armtrace}
LAB=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Raised whenever the tables or the settings that the prepared data directory was made with change.
TEMPLATE=1

die() { echo "${0##*/}: $*" >&2; exit 1; }
note() { echo "${0##*/}: $*" >&2; }
need_root() { [ "$(id -u)" = 0 ] || die "must run as root: try sudo $0"; }

# Rows of the table of servers, without its comments.
server_rows() { sed '/^#/d; /^$/d' "$LAB/servers"; }
# list_servers SET: the names of the servers of a set, or of all.
list_servers() { server_rows | awk -v set="$1" 'set == "all" || $4 == set { print $1 }'; }

# Sets what the table says of a server, and where it lies: home, template and, in home, daemon. A Maven artifact is a
# release and never changes; packages come from Debian's unstable suite and three stable ones, and apt's signatures vouch
# for them. Where rooted is 1, the server's folder is a root of its own, because it needs other libraries than this
# machine's.
describe_server() {
    local name folder=$1
    rooted=0
    # shellcheck disable=SC2034
    read -r name flavor version set daemon source what sha256 < <(server_rows | awk -v name="$1" '$1 == name') ||
        die "no such server: $1 (there are: $(list_servers all | xargs))"
    case $source in
    debootstrap | root) rooted=1 ;;
    same) folder=$what ;;
    esac
    home=$CACHE/servers/$folder
    template=$CACHE/data/$folder
}

# at_least VERSION: whether the server that was described is of that version or later.
at_least() { [ "$(printf '%s\n' "$1" "$version" | sort --version-sort | head -n 1)" = "$1" ]; }

# One builder at a time for each cached thing; the others wait and then find it made.
lock_cache() {
    mkdir -p "$CACHE"
    exec 8>"$CACHE/.lock-$1"
    flock 8
}
unlock_cache() { exec 8>&-; }

# maven ARTIFACT SHA256 FOLDER: the file that a Maven artifact is, checked, into a new folder; sets archive.
maven() {
    mvn --batch-mode --quiet -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy \
        "-Dartifact=$1" "-DoutputDirectory=$3" >&2
    archive=$(find "$3" -type f)
    check_sha256 "$1" "$2"
}
# Whether archive is what it should be.
check_sha256() { echo "$2  $archive" | sha256sum --check --quiet >&2 || die "$1 is not the file it should be"; }
