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
# listening PORT: succeeds if a program of this machine listens on that port.
listening() { (exec 7<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
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

# become_root: sets sudo to the words that make a command run as root, or fails. Asks for a password only on a terminal.
become_root() {
    local name
    sudo=()
    [ "$(id -u)" != 0 ] || return 0
    command -v sudo >/dev/null || return 1
    sudo -n true 2>/dev/null || { [ -t 0 ] && sudo -v; } || return 1
    # What root makes in the cache stays root's, but not the folders around it.
    mkdir -p "$CACHE"
    # sudo clears the environment, in which this machine may say how to reach others.
    sudo=(sudo env "ARMTRACE_CACHE=$CACHE")
    for name in http_proxy https_proxy no_proxy CURL_CA_BUNDLE SSL_CERT_FILE ARMTRACE_DEBIAN_MIRROR \
        ARMTRACE_MAVEN_REPOSITORY; do
        if [ -n "${!name:-}" ]; then sudo+=("$name=${!name}"); fi
    done
}

# failed_tests: prints the names of the tests that failed, from what cargo test has printed.
failed_tests() { sed -n '/^failures:$/,/^test result: /s/^    \([a-z0-9_]*::[a-z0-9_:]*\)$/\1/p'; }

# tracing_obstacle: prints why nothing can be traced here, as far as this can be told before armtrace is built; otherwise
# nothing.
tracing_obstacle() {
    local sudo held
    if ! become_root; then
        echo "tracing takes root, and sudo does not give it here"
        return
    fi
    if ! [ -e /sys/kernel/btf/vmlinux ]; then
        echo "this kernel has no type information (/sys/kernel/btf/vmlinux)"
        return
    fi
    # The kernel does not take BPF programs from the root of such a namespace, whatever its capabilities.
    if ! awk '{ ids += $3 } END { exit ids != 4294967295 }' /proc/self/uid_map; then
        echo "root is that of a user namespace here, which may not trace"
        return
    fi
    # CAP_SYS_PTRACE is bit 19, CAP_SYS_ADMIN 21, CAP_PERFMON 38, CAP_BPF 39.
    held=0x$("${sudo[@]}" sed -n 's/^CapEff:\t*//p' /proc/self/status)
    if (((held >> 19 & 1) == 0 || ((held >> 21 & 1) == 0 && ((held >> 38) & 3) != 3))); then
        echo "root lacks CAP_BPF, CAP_PERFMON or CAP_SYS_PTRACE here, as in a container without privileges"
    fi
}
# doctors_obstacle BINARY: prints what armtrace itself finds missing here, otherwise nothing. Runs as sudo says.
doctors_obstacle() {
    local said status=0
    said=$("${sudo[@]}" "$1" doctor 2>&1) || status=$?
    # Other statuses are not about this machine.
    [ $status != 4 ] || echo "armtrace doctor says $(grep -m 1 -w NO <<<"$said" | xargs)"
}

# Prints the version of Rust that the crate asks for.
rust_version() { sed -n 's/^rust-version = "\(.*\)"/\1/p' "$LAB/../../Cargo.toml"; }
# Succeeds if there is a cargo of that version or later. rustup's is found even if no start-up file of a shell added it
# to the path.
recent_cargo() {
    local found
    PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
    found=$(cargo --version 2>/dev/null | cut -d ' ' -f 2) || return 1
    [ -n "$found" ] && printf '%s\n' "$(rust_version)" "$found" | sort --version-sort --check 2>/dev/null
}
# Succeeds if there is a clang that compiles for BPF. build.rs looks for it in the same way.
targets_bpf() {
    local clang
    for clang in ${CLANG:-$(compgen -c clang | grep -xE 'clang(-[0-9]+)?' | sort --unique)}; do
        if echo | "$clang" -target bpf -x c -c -o /dev/null - 2>/dev/null; then return 0; fi
    done
    return 1
}

# Prints the URL of the repository from which this machine's Maven takes releases: a mirror that its settings name,
# otherwise the one built into Maven. Debian's package of Maven's core states that; it is read, not installed.
maven_repository() {
    local settings mirror folder jar
    if [ -n "${ARMTRACE_MAVEN_REPOSITORY:-}" ]; then
        echo "$ARMTRACE_MAVEN_REPOSITORY"
        return
    fi
    for settings in "$HOME/.m2" ${SUDO_USER:+"$(getent passwd "$SUDO_USER" | cut -d : -f 6)/.m2"} /etc/maven; do
        [ -r "$settings/settings.xml" ] || continue
        mirror=$(perl -0777 -ne '
            s/<!--.*?-->//gs;
            for (m{<mirror>(.*?)</mirror>}gs) {
                my ($of) = m{<mirrorOf>\s*(.*?)\s*</mirrorOf>}s;
                my ($url) = m{<url>\s*(.*?)\s*</url>}s;
                my @of = split /\s*,\s*/, $of;
                next if grep { $_ eq "!central" } @of;
                if (grep { /^(central|\*|external:\*)$/ } @of) { print $url; last }
            }' "$settings/settings.xml")
        if [ -n "$mirror" ]; then
            echo "$mirror"
            return
        fi
    done
    # Maven's built-in settings are a file in one of its libraries.
    folder=$(mktemp -d)
    jar=/usr/share/java/maven3-model-builder.jar
    if ! [ -e $jar ]; then
        jar=$folder/builder.jar
        package libmaven3-core-java "$folder" | tar -xO --wildcards './usr/share/java/maven3-model-builder*.jar' >"$jar" || return
    fi
    unzip -p "$jar" '*/pom-4.0.0.xml' | sed -n 's|.*<url>\(.*\)</url>.*|\1|p' | head -n 1
    rm -rf "$folder"
}

# package NAME FOLDER: downloads a package of this machine's release into a folder, and prints its files as a tar archive.
package() {
    # As root, apt downloads as a user that may not enter the folder, and would warn.
    (cd "$2" && apt-get -qq -o "APT::Sandbox::User=$(id -un)" download "$1" >&2) && dpkg-deb --fsys-tarfile "$2/$1"_*.deb
}

# maven ARTIFACT SHA256 FOLDER: downloads a Maven artifact into a new folder, verifies it, and sets archive to its path.
# It is one file of a repository, so that Maven is needed only where its settings say more than a mirror's URL.
maven() {
    local group name release type classifier repository file
    IFS=: read -r group name release type classifier <<<"$1"
    file=$name-$release${classifier:+-$classifier}.${type:-jar}
    mkdir -p "$3"
    archive=$3/$file
    if ! { repository=$(maven_repository) && curl --silent --show-error --fail --location --retry 2 --output "$archive" \
        "${repository%/}/${group//.//}/$name/$release/$file" >&2; }; then
        command -v mvn >/dev/null ||
            die "cannot download $1: install maven if it has to be configured, or set ARMTRACE_MAVEN_REPOSITORY to a URL"
        rm -f "$archive"
        mvn --batch-mode --quiet -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy \
            "-Dartifact=$1" "-DoutputDirectory=$3" >&2
        archive=$(find "$3" -type f)
    fi
    check_sha256 "$1" "$2"
}
# check_sha256 NAME SHA256: fails unless archive has this checksum.
check_sha256() { echo "$2  $archive" | sha256sum --check --quiet >&2 || die "$1 has the wrong SHA-256 checksum"; }
