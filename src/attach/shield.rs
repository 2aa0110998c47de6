//! Changes another process's code so that the change cannot be cut short.
//!
//! A thread that is being killed cannot change another process's code. The kernel gives up (`get_user_pages` fails with
//! `EINTR`, and nothing retries `uprobe_unregister` in `kernel/events/uprobes.c`), logs "failed to unregister, leaking
//! uprobe", and the breakpoint stays in the server until it exits. So a helper process attaches and detaches probes. It
//! has memory and descriptors of its own, so neither a kill of this process nor the OOM killer ends it, and it keeps
//! nothing that a restart needs. It ends after this process, once it has finished what it was asked for.
//!
//! Each request has a socket of its own, which this process passes to the helper. What is attached belongs to this
//! process: the helper passes it on and forgets it.

use std::ffi::c_int;
use std::fs;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::uprobe::Place;

/// The helper's name in lists of processes.
const NAME: &std::ffi::CStr = c"armtrace-attach";

/// The most descriptors in a message: a program and a file.
const MOST_DESCRIPTORS: usize = 2;

/// The helper of this process.
static SHIELD: Shield = Shield(Mutex::new(None));

/// A program that is attached to code. Dropping it detaches the program.
#[derive(Debug)]
pub(super) struct CodeLink(Option<OwnedFd>);

impl CodeLink {
    /// Attaches a program to a place in a file. Where no helper can be had, this process does it. A helper that is
    /// killed meanwhile is replaced once, which also gives an owner to what it may have left in the code.
    ///
    /// # Errors
    /// Fails when the kernel refuses.
    pub fn attach(place: &Place, program: BorrowedFd, file: BorrowedFd) -> io::Result<CodeLink> {
        let attach = || match SHIELD.ask() {
            Ok(socket) => have_attached(socket, place, program, file),
            Err(error) => {
                tracing::debug!("attaching without a helper: {error}");
                place.attach(program, file)
            }
        };
        let link = attach().or_else(|error| if was_killed(&error) { attach() } else { Err(error) })?;
        Ok(CodeLink(Some(link)))
    }
}

impl Drop for CodeLink {
    fn drop(&mut self) {
        let Some(link) = self.0.take() else { return };
        // Where no helper can be had, this process detaches by dropping the link.
        let done = SHIELD.ask().and_then(|socket| have_detached(socket, link));
        if let Err(error) = done {
            tracing::debug!("detaching without a helper: {error}");
        }
    }
}

/// Ends the helper, and starts another, which has no more privileges than this thread has now. Call it while this
/// process has one thread and little memory, of which the helper gets a copy.
pub(super) fn start_anew() {
    let mut helper = SHIELD.0.lock();
    *helper = None;
    *helper = Helper::start().inspect_err(|error| tracing::debug!("no helper: {error}")).ok();
}

/// Returns the helper's process ID, if there is one.
pub fn helper_pid() -> Option<i32> {
    SHIELD.0.lock().as_ref().map(|helper| helper.pid)
}

/// What is asked for, the first byte of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// Attach the program, the first descriptor, to the file, the second, at the place that follows.
    Attach,
    /// Close the descriptor, but not before the request has ended.
    Detach,
}

/// Returns whether a request failed because the helper has ended, rather than by what the kernel said.
fn was_killed(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof)
}

fn have_attached(mut socket: UnixStream, place: &Place, program: BorrowedFd, file: BorrowedFd) -> io::Result<OwnedFd> {
    send(&socket, &[Task::Attach as u8], &[program, file])?;
    socket.write_all(&place.to_bytes())?;
    socket.shutdown(Shutdown::Write)?;
    let mut answer = [0; size_of::<i32>()];
    let received = receive(&socket, &mut answer);
    // Once it has closed the socket, the helper does not have the link any more.
    socket.read_to_end(&mut Vec::new())?;
    match (received?, i32::from_ne_bytes(answer)) {
        ((0, _), _) => Err(ErrorKind::UnexpectedEof.into()),
        ((_, links), 0) => links.into_iter().next().ok_or_else(|| ErrorKind::InvalidData.into()),
        (_, error) => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Returns once the kernel has detached what `link` keeps attached.
fn have_detached(mut socket: UnixStream, link: OwnedFd) -> io::Result<()> {
    send(&socket, &[Task::Detach as u8], &[link.as_fd()])?;
    // Whoever closes it last detaches. The helper waits for the end of the request.
    drop(link);
    socket.shutdown(Shutdown::Write)?;
    socket.read_to_end(&mut Vec::new())?;
    Ok(())
}

/// A helper, once one was needed.
struct Shield(Mutex<Option<Helper>>);

impl Shield {
    /// Returns a socket on which the helper expects a request. A helper that was killed is replaced.
    fn ask(&self) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut helper = self.0.lock();
        if helper.as_ref().is_none_or(|helper| helper.expect_request(&theirs).is_err()) {
            *helper = None;
            let new = Helper::start()?;
            new.expect_request(&theirs)?;
            *helper = Some(new);
        }
        Ok(ours)
    }
}

/// The helper process. Dropping it waits until it has ended.
struct Helper {
    pid: libc::pid_t,
    /// Where it is passed the sockets of requests. It ends when this is closed.
    requests: UnixStream,
}

impl Helper {
    fn start() -> io::Result<Helper> {
        let (requests, theirs) = UnixStream::pair()?;
        let before = block_signals();
        // SAFETY: the new process has this thread alone. It uses what is its own, and malloc, which `fork` leaves in
        // order, and it never returns.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            help(theirs);
        }
        let failure = io::Error::last_os_error();
        // SAFETY: restores the mask that this thread had before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
        if pid < 0 {
            return Err(failure);
        }
        Ok(Helper { pid, requests })
    }

    fn expect_request(&self, socket: &UnixStream) -> io::Result<()> {
        send(&self.requests, &[0], &[socket.as_fd()])
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        _ = self.requests.shutdown(Shutdown::Both);
        // SAFETY: waits for a child that nothing else waits for, and does not ask for its status.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }
}

/// Blocks all signals in this thread, and so in the process that it starts, because Ctrl-C is sent to both. Returns the
/// previous mask.
fn block_signals() -> libc::sigset_t {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the first call fills `all`; the second one reads it and fills `before`.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

/// The helper process: does what it is asked for, each request in a thread or, where the system starts none, in this
/// one, until nobody can ask any more and everything is done.
fn help(requests: UnixStream) -> ! {
    let done = catch_unwind(AssertUnwindSafe(|| {
        keep_only(requests.as_raw_fd());
        // SAFETY: the name ends with a zero byte.
        unsafe { libc::prctl(libc::PR_SET_NAME, NAME.as_ptr()) };
        // It is small, and ends by itself. The first needs a privilege.
        _ = ["-1000", "0"].iter().any(|score| fs::write("/proc/self/oom_score_adj", score).is_ok());
        thread::scope(|scope| {
            while let Ok((1.., descriptors)) = receive(&requests, &mut [0]) {
                for socket in descriptors {
                    // A thread that is refused takes its work along, but not what is in here.
                    let socket = Arc::new(Mutex::new(Some(UnixStream::from(socket))));
                    let given = Arc::clone(&socket);
                    let work = move || given.lock().take().into_iter().for_each(serve);
                    if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                        socket.lock().take().into_iter().for_each(serve);
                    }
                }
            }
        });
    }));
    // SAFETY: ends this process without running what the other one has registered for its own end.
    unsafe { libc::_exit(c_int::from(done.is_err())) }
}

/// Closes all descriptors but one.
fn keep_only(kept: c_int) {
    let close = |first: c_int, last: c_int| {
        // SAFETY: takes numbers. Nothing in this process uses these descriptors any more.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    };
    if kept > 0 {
        close(0, kept - 1);
    }
    close(kept + 1, c_int::MAX);
    if let Ok(null) = fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        for standard in 0..=2 {
            if standard != kept {
                // SAFETY: `kept` is the only descriptor in use besides `null`, and is not replaced.
                unsafe { libc::dup2(null.as_raw_fd(), standard) };
            }
        }
        // It may be one of these three.
        std::mem::forget(null);
    }
}

/// Does what is asked for on a socket. If nobody waits for the answer any more, nothing stays attached.
fn serve(mut socket: UnixStream) {
    let mut task = [0];
    let Ok((1, descriptors)) = receive(&socket, &mut task) else { return };
    let mut rest = Vec::new();
    if socket.read_to_end(&mut rest).is_err() || task[0] != Task::Attach as u8 {
        return;
    }
    let attached = match (Place::from_bytes(&rest), &descriptors[..]) {
        (Some(place), [program, file]) => place.attach(program.as_fd(), file.as_fd()),
        _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    };
    _ = match &attached {
        Ok(link) => send(&socket, &0_i32.to_ne_bytes(), &[link.as_fd()]),
        Err(error) => send(&socket, &error.raw_os_error().unwrap_or(libc::EIO).to_ne_bytes(), &[]),
    };
    // Before the socket is closed, which says that this process has the link no more.
    drop(attached);
}

fn send(socket: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut attached = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        attached.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let send = || sendmsg(socket, &[IoSlice::new(bytes)], &mut attached, SendFlags::NOSIGNAL);
    rustix::io::retry_on_intr(send)?;
    Ok(())
}

/// Returns the number of bytes that were received, which is 0 at the end, and the descriptors that came with them.
fn receive(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut attached = RecvAncillaryBuffer::new(&mut space);
    let receive =
        || recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut attached, RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL);
    let received = rustix::io::retry_on_intr(receive)?;
    let descriptors = attached.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok((received.bytes, descriptors.flatten().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::time::Duration;

    fn shield() -> Shield {
        Shield(Mutex::new(None))
    }

    fn pid(shield: &Shield) -> i32 {
        shield.0.lock().as_ref().unwrap().pid
    }

    /// Has the helper close the only writing end of a pipe.
    fn close_pipe(shield: &Shield) {
        let (mut reader, writer) = io::pipe().unwrap();
        have_detached(shield.ask().unwrap(), writer.into()).unwrap();
        reader.read_to_end(&mut Vec::new()).unwrap();
    }

    fn nowhere() -> Place {
        Place { pid: 1, at_return: false, together: true, sites: Vec::new() }
    }

    fn null() -> File {
        File::open("/dev/null").unwrap()
    }

    #[test]
    fn what_is_detached_is_closed_everywhere() {
        let shield = shield();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| close_pipe(&shield));
            }
        });
    }

    #[test]
    fn the_helper_has_nothing_that_it_does_not_need() {
        let shield = shield();
        let kept = null();
        close_pipe(&shield);
        let files = fs::read_dir(format!("/proc/{}/fd", pid(&shield))).unwrap().map(|file| file.unwrap());
        let mut files: Vec<_> = files.map(|file| fs::read_link(file.path()).unwrap()).collect();
        files.retain(|file| file != std::path::Path::new("/dev/null"));
        let [socket] = &files[..] else { panic!("{files:?}") };
        assert!(socket.to_string_lossy().starts_with("socket:"), "{files:?}");
        let name = fs::read_to_string(format!("/proc/{}/comm", pid(&shield))).unwrap();
        assert_eq!(name.trim_end(), NAME.to_str().unwrap());
        drop(kept);
    }

    #[test]
    fn what_the_kernel_says_reaches_the_one_who_asked() {
        let error = have_attached(shield().ask().unwrap(), &nowhere(), null().as_fd(), null().as_fd()).unwrap_err();
        assert!(error.raw_os_error().is_some() && !was_killed(&error), "{error}");
    }

    #[test]
    fn a_killed_helper_is_replaced() {
        let shield = shield();
        close_pipe(&shield);
        let socket = shield.ask().unwrap();
        let first = pid(&shield);
        // SAFETY: kills this test's own helper.
        unsafe { libc::kill(first, libc::SIGKILL) };
        assert!(was_killed(&have_attached(socket, &nowhere(), null().as_fd(), null().as_fd()).unwrap_err()));
        close_pipe(&shield);
        assert_ne!(pid(&shield), first);
    }

    #[test]
    fn the_signal_mask_is_as_it_was() {
        let mask = || {
            let status = fs::read_to_string("/proc/thread-self/status").unwrap();
            status.lines().find(|line| line.starts_with("SigBlk")).map(str::to_owned)
        };
        let before = mask();
        close_pipe(&shield());
        assert_eq!(mask(), before);
    }

    /// Listens, and is killed while its helper waits for a request. The test below runs it in a process of its own.
    #[test]
    #[ignore = "runs in a process that is killed"]
    fn listener() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let shield = shield();
        let _request = shield.ask().unwrap();
        println!("\nport {} helper {}", listener.local_addr().unwrap().port(), pid(&shield));
        std::thread::sleep(Duration::from_secs(10));
    }

    #[test]
    fn a_killed_process_leaves_neither_its_port_nor_its_helper() {
        use std::io::{BufRead, BufReader};
        use std::process::{Command, Stdio};

        let this = std::env::current_exe().unwrap();
        let mut child = Command::new(this)
            .args(["--exact", "attach::shield::tests::listener", "--ignored", "--nocapture"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let (port, helper): (u16, i32) = lines
            .find_map(|line| {
                let (port, helper) = line.strip_prefix("port ")?.split_once(" helper ")?;
                Some((port.parse().ok()?, helper.parse().ok()?))
            })
            .unwrap();
        let listen = || std::net::TcpListener::bind(("127.0.0.1", port));
        assert!(listen().is_err(), "the port is not taken, so this test could not fail");
        child.kill().unwrap();
        child.wait().unwrap();
        // The helper may still be on its way to closing its copies.
        let soon = |is_so: &dyn Fn() -> bool| {
            (0..500).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                is_so()
            })
        };
        assert!(soon(&|| listen().is_ok()));
        // A zombie runs no program.
        assert!(soon(&|| fs::read_link(format!("/proc/{helper}/exe")).is_err()));
    }
}
