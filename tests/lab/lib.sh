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

SERVERS="mysql-9.7 mariadb-11.4 mariadb-10.11 mariadb-10.11-debian mariadb-10.5-debian mariadb-10.2"

# Sets flavor, version, where the server comes from and, for a jar, its checksum. A MariaDB jar is a release and never
# changes; MySQL comes from Debian's unstable suite and two MariaDBs from stable ones, whose packages apt's signatures
# vouch for. Where rooted is 1, the server's folder is a root of its own, because it needs other libraries than this
# machine's.
describe_server() {
    jar_sha256="" source=jar rooted=0
    case $1 in
    mysql-9.7) flavor=mysql source=debootstrap version=9.7 rooted=1 ;;
    mariadb-11.4) flavor=mariadb version=11.4.5
        jar_sha256=5c6dcab86a79b6cd6b8957ce48a66a97312150ee86fab8ae658495ab09841854 ;;
    mariadb-10.11) flavor=mariadb version=10.11.5
        jar_sha256=b9775a3256caa0d97698f7512587db43dbcec57b242cc3a70bf7bc6ddcc4a9f8 ;;
    mariadb-10.11-debian) flavor=mariadb source=debian version=10.11 ;;
    mariadb-10.5-debian) flavor=mariadb source=bullseye version=10.5 rooted=1 ;;
    mariadb-10.2) flavor=mariadb version=10.2.11
        jar_sha256=694ebe488cb606a93ed586f1462fee392df7127784ad85ee2ab6e272d63ef33c ;;
    *) die "no such server: $1 (there are: $SERVERS)" ;;
    esac
    home=$CACHE/servers/$1
    template=$CACHE/data/$1
}

# One builder at a time for each cached thing; the others wait and then find it made.
lock_cache() {
    mkdir -p "$CACHE"
    exec 8>"$CACHE/.lock-$1"
    flock 8
}
unlock_cache() { exec 8>&-; }
