//! A child process: three threads move its bytes, so that neither side can block the other for good.
//!
//! It leads a process group of its own, which is ended as a whole. A shell that waits for our end of a
//! pipe ends the group when this process is gone, however it went: an interrupt or a kill too.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child as Process, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::frame::clean;

/// Bytes of standard error that are kept.
const STDERR: usize = 8 << 10;
/// Time that a child has to exit after it closed its output.
pub(super) const GRACE: Duration = Duration::from_secs(2);
/// The same after its input was closed: libraries are unloaded, devices released.
pub(super) const CLOSING: Duration = Duration::from_secs(20);
/// Time for the system to end what was killed: a process that waits for a device may never end.
const KILLED: Duration = Duration::from_secs(5);
/// Time to read what is left of its standard error then.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// What came from a child's standard output.
#[derive(Debug)]
pub(super) enum Event {
    /// A frame, without its length.
    Frame(Vec<u8>),
    /// A length beyond the limit. Nothing of it was read, nor will be.
    TooLong {
        /// The eight bytes.
        first: [u8; 8],
    },
    /// The end of the output.
    End,
}

/// How far the frame is that is being read.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    /// Its first bytes, at most eight: the length.
    pub(super) first: Vec<u8>,
    /// Bytes after these.
    pub(super) got: u64,
}

/// A running child.
pub(super) struct Child {
    process: Process,
    group: Option<Pid>,
    guard: Option<Process>,
    requests: Option<Sender<Vec<u8>>>,
    events: Receiver<Event>,
    limit: Arc<AtomicU64>,
    progress: Arc<Mutex<Progress>>,
    stderr: Arc<Mutex<Vec<u8>>>,
    stderr_thread: Option<JoinHandle<()>>,
    status: Option<ExitStatus>,
    ended: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Child {
    /// Starts a command whose first frame has `limit` bytes at most. `pass` passes its standard error on.
    ///
    /// # Errors
    /// When the system cannot.
    pub(super) fn start(command: &[OsString], limit: u64, pass: bool) -> io::Result<Child> {
        let (program, args) =
            command.split_first().ok_or_else(|| io::Error::other("no command is given"))?;
        let mut process = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let group = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
        let limit = Arc::new(AtomicU64::new(limit));
        let (progress, stderr) = (Arc::<Mutex<Progress>>::default(), Arc::default());
        let (requests, to_write) = channel();
        // One frame may wait; a child that writes without being asked is not read on.
        let (to_us, events) = sync_channel(1);
        if let Some(stdin) = process.stdin.take() {
            thread::spawn(move || write_all(stdin, &to_write));
        }
        if let Some(mut stdout) = process.stdout.take() {
            let (limit, progress) = (limit.clone(), progress.clone());
            thread::spawn(move || {
                loop {
                    let event = read_frame(&mut stdout, &limit, &progress);
                    let last = !matches!(event, Event::Frame(_));
                    if to_us.send(event).is_err() || last {
                        return;
                    }
                }
            });
        }
        let tail = Arc::clone(&stderr);
        let stderr_thread =
            process.stderr.take().map(|from| thread::spawn(move || keep_tail(from, &tail, pass)));
        let guard = guard(process.id());
        Ok(Child {
            process,
            group,
            guard,
            requests: Some(requests),
            events,
            limit,
            progress,
            stderr,
            stderr_thread,
            status: None,
            ended: false,
        })
    }

    /// Sends a frame whose answer has `limit` bytes at most.
    pub(super) fn send(&self, frame: Vec<u8>, limit: u64) {
        self.limit.store(limit, Ordering::SeqCst);
        if let Some(requests) = &self.requests {
            // A writer that is gone means a child that is gone: its output says so.
            let _ = requests.send(frame);
        }
    }

    /// The next event; `None` when there is none in time.
    pub(super) fn wait(&self, time: Duration) -> Option<Event> {
        match self.events.recv_timeout(time) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Event::End),
        }
    }

    /// How far the frame is that is being read.
    pub(super) fn progress(&self) -> Progress {
        lock(&self.progress).clone()
    }

    /// The end of what it wrote to standard error, for people; all of it once it has ended.
    pub(super) fn stderr(&self) -> String {
        let reading = || self.stderr_thread.as_ref().is_some_and(|thread| !thread.is_finished());
        let until = Instant::now() + LAST_WORDS;
        while self.status.is_some() && reading() && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
        }
        clean(&String::from_utf8_lossy(&lock(&self.stderr)))
    }

    /// The processes of its group that there are now.
    pub(super) fn processes(&self) -> Vec<u32> {
        let Ok(folder) = std::fs::read_dir("/proc") else { return vec![self.process.id()] };
        let ids = folder.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
        let ours = |id: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            // After the name in parentheses: state, parent, group.
            let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
            after.split_whitespace().nth(2) == Some(self.process.id().to_string().as_str())
        };
        ids.filter(ours).collect()
    }

    /// Closes its input, gives it time to exit, and ends what is left of its group. `None` when it had to
    /// be ended.
    pub(super) fn close(&mut self, time: Duration) -> Option<ExitStatus> {
        self.requests = None;
        let by_itself = self.exits_within(time);
        self.end();
        self.status.filter(|_| by_itself)
    }

    fn exits_within(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        while !self.has_exited() && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        self.has_exited()
    }

    /// Whether the leader has exited. It is not reaped, so that no other group can get its number.
    fn has_exited(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        self.status.is_some()
            || self.group.is_none_or(|id| !matches!(waitid(WaitId::Pid(id), options), Ok(None)))
    }

    /// Ends the group, then the guard, and takes the leader's status. The leader is reaped last, so that
    /// the group's number is nobody else's before.
    pub(super) fn end(&mut self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.process.kill();
        if let Some(mut guard) = self.guard.take() {
            let _ = guard.kill();
            let _ = guard.wait();
        }
        // One that the system cannot end is left to it.
        if self.exits_within(KILLED) {
            self.status = self.process.wait().ok();
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

/// How a process ended, in words.
pub(super) fn ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(signal)) => {
            let name = match signal {
                4 => " (SIGILL)",
                6 => " (SIGABRT)",
                7 => " (SIGBUS)",
                8 => " (SIGFPE)",
                9 => " (SIGKILL: out of memory?)",
                11 => " (SIGSEGV)",
                15 => " (SIGTERM)",
                _ => "",
            };
            format!("was ended by signal {signal}{name}")
        }
        (None, None) => "ended".into(),
    }
}

/// A shell that reads until this process has gone, and then ends the group. Without a shell there is
/// none, and the child sees the end of its input.
fn guard(group: u32) -> Option<Process> {
    Command::new("/bin/sh")
        .args(["-c", "read -r line; kill -s KILL -- \"-$1\"", "sh", &group.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .ok()
}

/// Writes frames until there are no more or nobody reads; then the child's input ends.
fn write_all(mut stdin: ChildStdin, frames: &Receiver<Vec<u8>>) {
    for frame in frames {
        if stdin.write_all(&frame).and_then(|()| stdin.flush()).is_err() {
            return;
        }
    }
}

fn read_frame(from: &mut impl Read, limit: &AtomicU64, progress: &Mutex<Progress>) -> Event {
    *lock(progress) = Progress::default();
    let mut first = [0; 8];
    let mut have = 0;
    while have < first.len() {
        match from.read(&mut first[have..]) {
            Ok(0) => return Event::End,
            Ok(n) => have += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Event::End,
        }
        lock(progress).first = first[..have].to_vec();
    }
    // The limit is that of the request under way: it was set before the request was written.
    let n = u64::from_le_bytes(first);
    if n > limit.load(Ordering::SeqCst) {
        return Event::TooLong { first };
    }
    let mut frame = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    while (frame.len() as u64) < n {
        let most = (n - frame.len() as u64).min(buffer.len() as u64) as usize;
        match from.read(&mut buffer[..most]) {
            Ok(0) => return Event::End,
            Ok(got) => frame.extend_from_slice(&buffer[..got]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Event::End,
        }
        lock(progress).got = frame.len() as u64;
    }
    *lock(progress) = Progress::default();
    Event::Frame(frame)
}

/// Reads to the end and keeps the last bytes.
fn keep_tail(mut from: impl Read, tail: &Mutex<Vec<u8>>, pass: bool) {
    let mut buffer = [0; 4096];
    loop {
        let n = match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        if pass {
            let _ = io::stderr().write_all(&buffer[..n]);
        }
        let mut tail = lock(tail);
        tail.extend_from_slice(&buffer[..n]);
        let more = tail.len().saturating_sub(STDERR);
        tail.drain(..more);
    }
}
