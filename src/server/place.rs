//! Where a server runs: its unit, its container. From these follows a name that it keeps when it restarts.

use std::io::Read;
use std::path::Path;

use procfs::process::Process;
use serde::Deserialize;

use super::running::RunningServer;
use crate::symbols::RootFolder;

/// The characters of a container's ID by which its tools show it.
const SHORT_ID: usize = 12;
/// The characters of a container's ID.
const ID: usize = 64;
/// Where Docker keeps what it knows of each container.
const CONTAINERS_OF_DOCKER: &str = "/var/lib/docker/containers";
/// The most bytes read of a file that says what a container is called.
const MAX_FILE: u64 = 1 << 20;
/// The most characters of a server's name.
const MAX_NAME: usize = 128;

/// The unit and the container that a process belongs to, as far as its control group says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The systemd unit, as in `mysql.service`.
    pub unit: Option<String>,
    /// What its container is called, if it runs in one that has a name; otherwise the beginning of its ID.
    pub container: Option<String>,
}

impl Place {
    /// Returns where a process runs.
    pub fn of(process: &Process) -> Place {
        let groups = process.cgroups().into_iter().flatten();
        let mut place = Place::default();
        for group in groups {
            let (unit, container) = parse(&group.pathname);
            place.unit = place.unit.or(unit);
            place.container = place.container.or(container);
        }
        place.container = place.container.map(|id| if is_id(&id) { called(process, &id) } else { id });
        place
    }
}

/// Returns the unit and the container in the path of a control group. A container is given by its name or by its ID.
fn parse(path: &str) -> (Option<String>, Option<String>) {
    let (mut unit, mut container) = (None, None);
    for part in path.split('/') {
        if let Some(name) = container_in(part) {
            // A unit outside is that of the container's runtime.
            (unit, container) = (None, Some(name));
        } else if part.ends_with(".service") && !part.starts_with("user@") {
            unit = Some(part.to_owned());
        }
    }
    (unit, container)
}

/// Returns the container that this part of a path stands for, by its name or its ID.
fn container_in(part: &str) -> Option<String> {
    let id = part.split(['-', '.', ':']).find(|word| is_id(word));
    let nspawn = || part.strip_prefix("systemd-nspawn@")?.strip_suffix(".service");
    let machine = || part.strip_prefix("machine-")?.strip_suffix(".scope");
    let lxc = || part.strip_prefix("lxc.payload.");
    id.or_else(nspawn).or_else(machine).or_else(lxc).filter(|name| !name.is_empty()).map(str::to_owned)
}

fn is_id(word: &str) -> bool {
    word.len() == ID && word.bytes().all(|c| c.is_ascii_hexdigit())
}

/// Returns what the container with this ID is called: by Docker, or by its host name, which is that of the pod. Without
/// either this is the beginning of the ID.
fn called(process: &Process, id: &str) -> String {
    let short = &id[..SHORT_ID];
    // Docker's own default for the host name is the short ID.
    let host = || host_name(process.pid).filter(|name| !name.is_empty() && !id.starts_with(name.as_str()));
    docker_name(Path::new(CONTAINERS_OF_DOCKER), id).or_else(host).unwrap_or_else(|| short.to_owned())
}

/// Returns the name that Docker keeps of a container in this directory.
fn docker_name(containers: &Path, id: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Config {
        #[serde(rename = "Name")]
        name: String,
    }
    let text = small_text(containers, &Path::new(id).join("config.v2.json"))?;
    let config: Config = serde_json::from_str(&text).ok()?;
    Some(config.name.trim_start_matches('/').to_owned()).filter(|name| !name.is_empty())
}

/// Returns what the container of this process calls its host.
fn host_name(pid: i32) -> Option<String> {
    let root = format!("/proc/{pid}/root");
    Some(small_text(Path::new(&root), Path::new("/etc/hostname"))?.trim().to_owned())
}

/// Returns the beginning of a file in this directory, which a container may have made.
fn small_text(root: &Path, path: &Path) -> Option<String> {
    let file = RootFolder::open(root).ok()?.open_file(path).ok()?;
    let mut text = String::new();
    file.take(MAX_FILE).read_to_string(&mut text).ok()?;
    Some(text)
}

impl RunningServer {
    /// Returns a name that stays when the server restarts: its unit or container, otherwise the directory of its data,
    /// otherwise its port. It is never a process ID. Two servers of one host may have the same.
    pub fn lasting_name(&self) -> String {
        let place: Vec<&str> =
            [&self.place.container, &self.place.unit].into_iter().flatten().map(String::as_str).collect();
        let name = if place.is_empty() { self.place_of_data() } else { place.join("/") };
        name.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect()
    }

    /// Returns a longer name, for one of several servers with the same [`RunningServer::lasting_name`].
    pub fn longer_name(&self) -> String {
        let name = format!("{}:{}", self.lasting_name(), self.place_of_data());
        name.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect()
    }

    fn place_of_data(&self) -> String {
        let port = || self.port.as_ref().map(|port| format!("port {port}"));
        self.data.clone().or_else(port).unwrap_or_else(|| self.name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCKER: &str = "3f4e5d6c7b8a99887766554433221100ffeeddccbbaa00112233445566778899";

    fn parsed(path: &str) -> (Option<String>, Option<String>) {
        parse(&path.replace("ID", DOCKER))
    }

    /// Paths as systemd, Docker, containerd, CRI-O, Podman, LXC and systemd-nspawn make them.
    #[test]
    fn control_groups_tell_units_and_containers() {
        let some = |text: &str| Some(text.to_owned());
        for (path, unit, container) in [
            ("/system.slice/mysql.service", some("mysql.service"), None),
            ("/system.slice/system-mysqld.slice/mysqld@replica01.service", some("mysqld@replica01.service"), None),
            ("/user.slice/user-1000.slice/session-4.scope", None, None),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/db.service", some("db.service"), None),
            ("/user.slice/user-1000.slice/user@1000.service/init.scope", None, None),
            ("/", None, None),
            ("/docker/ID", None, some(DOCKER)),
            ("/system.slice/docker-ID.scope", None, some(DOCKER)),
            ("/kubepods.slice/kubepods-pod1.slice/cri-containerd-ID.scope", None, some(DOCKER)),
            ("/kubepods/besteffort/pod7c9d/ID", None, some(DOCKER)),
            ("/kubepods.slice/crio-ID.scope/container", None, some(DOCKER)),
            ("/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:ID", None, some(DOCKER)),
            ("/machine.slice/libpod-ID.scope/container", None, some(DOCKER)),
            ("/lxc.payload.db1/system.slice/mariadb.service", some("mariadb.service"), some("db1")),
            ("/machine.slice/systemd-nspawn@db2.service/payload", None, some("db2")),
            ("/machine.slice/machine-db3.scope/system.slice/mysql.service", some("mysql.service"), some("db3")),
        ] {
            assert_eq!(parsed(path), (unit, container), "{path}");
        }
    }

    #[test]
    fn docker_says_what_a_container_is_called() {
        let folder = tempfile::tempdir().expect("a folder");
        let of_one = folder.path().join(DOCKER);
        std::fs::create_dir(&of_one).expect("a folder");
        std::fs::write(of_one.join("config.v2.json"), r#"{"ID":"3f4e","Name":"/orders-db"}"#).expect("a file");
        assert_eq!(docker_name(folder.path(), DOCKER).as_deref(), Some("orders-db"));
        assert_eq!(docker_name(folder.path(), &DOCKER.replace('3', "4")), None);
        std::fs::write(of_one.join("config.v2.json"), "{").expect("a file");
        assert_eq!(docker_name(folder.path(), DOCKER), None);
    }

    fn server(container: Option<&str>, unit: Option<&str>, data: Option<&str>) -> RunningServer {
        let [container, unit, data] = [container, unit, data].map(|text| text.map(str::to_owned));
        RunningServer {
            pid: 70,
            name: "mysqld".to_owned(),
            version: None,
            user: "mysql".to_owned(),
            data,
            port: Some("3307".to_owned()),
            is_in_container: false,
            place: Place { unit, container },
        }
    }

    #[test]
    fn a_name_lasts() {
        let of_unit = server(None, Some("mysql.service"), Some("/var/lib/mysql"));
        assert_eq!(of_unit.lasting_name(), "mysql.service");
        assert_eq!(of_unit.longer_name(), "mysql.service:/var/lib/mysql");
        assert_eq!(server(Some("db1"), Some("mysql.service"), None).lasting_name(), "db1/mysql.service");
        assert_eq!(server(Some("orders-0"), None, Some("/data")).lasting_name(), "orders-0");
        assert_eq!(server(None, None, Some("/data")).lasting_name(), "/data");
        assert_eq!(server(None, None, None).lasting_name(), "port 3307");
        let hostile = server(Some("a\n\x1b[2Jb"), None, None).lasting_name();
        assert_eq!(hostile, "a[2Jb");
        assert_eq!(server(Some(&"x".repeat(5000)), None, None).lasting_name().len(), MAX_NAME);
    }
}
