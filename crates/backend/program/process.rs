//! Runs the user's programs as processes. Each program leads its own process group. The whole group is killed on a timeout, on an
//! interrupt, and when the program is no longer needed.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::Deserialize;
use serde_json::json;
use ulplab_core::error::refuse;

/// Number of last lines of a program's stderr that are shown if the program fails.
const TAIL: usize = 20;
/// Largest number of bytes that are stored of stderr, and of one line of stdout.
const KEPT: usize = 1 << 16;
/// Number of stdout lines in an error message: the last lines that are not answers to requests.
const STRAY: usize = 3;
/// Capacity of the queue of unread stdout lines.
const WAITING: usize = 1024;
/// Interval at which the clock and the signal flag are checked while waiting for a program.
const POLL: Duration = Duration::from_millis(10);
/// Longest time that a program may take to end after its last output; it is then killed.
const GRACE: Duration = Duration::from_secs(2);

/// Limits of the wait for a program: a timeout, and a flag that interrupts the wait.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    pub timeout: Duration,
    /// Turns true when the run is interrupted.
    pub stop: &'a AtomicBool,
}

impl Limits<'static> {
    /// Limits of the wait for a program to end after its last output. The interrupt flag never turns true: an interrupt does not
    /// end this wait.
    const GRACE: Self = Self {
        timeout: GRACE,
        stop: &NEVER,
    };
}

static NEVER: AtomicBool = AtomicBool::new(false);

impl Limits<'_> {
    /// Returns an error if the wait that began at `began` must stop: the run was interrupted, or the timeout has passed.
    fn check(&self, began: Instant) -> Result<(), String> {
        refuse(self.stop.load(Ordering::Relaxed), "was interrupted")?;
        let seconds = self.timeout.as_secs_f64();
        let why = format_args!("took longer than its timeout of {seconds} s and was killed");
        refuse(began.elapsed() >= self.timeout, why)
    }
}

/// A running program, and the last bytes of its stderr.
struct Process {
    child: Child,
    stderr: Tail,
    /// True once the process group is killed. A group must not be killed twice, because another process may get its id.
    killed: bool,
}

impl Process {
    fn start(run: &[String], more: &[&Path], [stdin, stdout]: [Stdio; 2]) -> Result<Self, String> {
        let [program, arguments @ ..] = run else {
            return Err("no program is given".into());
        };
        let mut command = Command::new(program);
        command.args(arguments).args(more).process_group(0);
        command.stdin(stdin).stdout(stdout).stderr(Stdio::piped());
        let child = command.spawn();
        let mut child = child.map_err(|error| format!("cannot be started: {error}"))?;
        let stderr = Tail::new(child.stderr.take().expect("stderr is piped"));
        Ok(Self {
            child,
            stderr,
            killed: false,
        })
    }

    /// Waits until the program ends by itself, then kills the processes that it started.
    fn wait(&mut self, limits: Limits) -> Result<ExitStatus, String> {
        let began = Instant::now();
        loop {
            let ended = self.child.try_wait();
            if let Some(status) = ended.map_err(|error| format!("cannot be waited for: {error}"))? {
                self.kill();
                return Ok(status);
            }
            limits.check(began)?;
            std::thread::sleep(POLL);
        }
    }

    /// Kills the whole process group. Does nothing if the group has already ended.
    fn kill(&mut self) {
        if std::mem::replace(&mut self.killed, true) {
            return;
        }
        let group = Pid::from_raw(self.child.id().cast_signed());
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a program to its end, with two paths after its arguments. Returns the end of its stderr, or a description of the failure.
pub fn run_once(run: &[String], paths: [&Path; 2], limits: Limits) -> Result<String, String> {
    let mut process = Process::start(run, &paths, [Stdio::null(), Stdio::null()])?;
    let outcome = process.wait(limits);
    let wrong = match outcome {
        Ok(status) if status.success() => return Ok(process.stderr.shown()),
        Ok(status) => ending(status),
        Err(why) => why,
    };
    process.kill();
    Err(format!("{wrong}; {}", process.stderr.shown()))
}

/// Describes an exit status: `exited with status 2`, or `ended by signal 11`.
fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => format!("ended with {status}"),
    }
}

/// A program that stays alive: it reads requests from stdin and writes answers to stdout, one line of JSON each.
pub struct Server {
    process: Process,
    /// Stdin of the program; `None` once it is closed.
    requests: Option<ChildStdin>,
    lines: Receiver<String>,
    answered: usize,
}

/// Possible answers of a serving program.
#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Failed { error: String },
    Done { ok: bool },
}

/// Error of a request to a serving program.
pub enum ServerError {
    /// The program answered with an error, and can take further requests.
    Answered(String),
    /// The program has ended, or was killed: after a timeout, an interrupt, or an answer without a request.
    Gone(String),
}

impl Server {
    pub fn start(run: &[String]) -> Result<Self, String> {
        let mut process = Process::start(run, &[], [Stdio::piped(), Stdio::piped()])?;
        let requests = process.child.stdin.take();
        let stdout = process.child.stdout.take().expect("stdout is piped");
        let (send, lines) = sync_channel(WAITING);
        std::thread::spawn(move || read_lines(stdout, &send));
        Ok(Self {
            process,
            requests,
            lines,
            answered: 0,
        })
    }

    /// Requests the outputs for a file of inputs, and waits for the answer. Returns the end of the stderr that the program wrote
    /// meanwhile.
    pub fn ask(&mut self, [inputs, outputs]: [&Path; 2], limits: Limits) -> Result<String, ServerError> {
        let began = Instant::now();
        let early = self.lines.try_iter().find(|line| answer(line).is_some());
        if let Some(line) = early {
            let wrong = format!("wrote {} before it was asked", quoted(&line));
            return Err(self.gone(wrong, &[]));
        }
        self.process.stderr.clear();
        let request = json!({"inputs": inputs.to_string_lossy(), "outputs": outputs.to_string_lossy()});
        let pipe = self.requests.as_mut().expect("the program is not told to end");
        if writeln!(pipe, "{request}").and_then(|()| pipe.flush()).is_err() {
            return Err(self.ended(&[]));
        }
        let mut stray = Vec::new();
        loop {
            match self.lines.recv_timeout(POLL) {
                Ok(line) => match answer(&line) {
                    Some(Answer::Done { ok: true }) => {
                        self.answered += 1;
                        return Ok(self.process.stderr.so_far());
                    }
                    Some(Answer::Done { ok: false }) => {
                        let expected = r#"expected {"ok": true} or {"error": "…"}"#;
                        let wrong = format!("answered {}, {expected}", quoted(&line));
                        return Err(ServerError::Answered(wrong));
                    }
                    Some(Answer::Failed { error }) => {
                        let wrong = format!("answered with the error: {}", plain(&error));
                        return Err(ServerError::Answered(wrong));
                    }
                    None => {
                        stray.push(line);
                        stray.drain(..stray.len().saturating_sub(STRAY));
                    }
                },
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended(&stray)),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Err(why) = limits.check(began) {
                return Err(self.gone(why, &stray));
            }
        }
    }

    /// Returns the error for a program that closed its stdout.
    fn ended(&mut self, stray: &[String]) -> ServerError {
        let wrong = match self.process.wait(Limits::GRACE) {
            Ok(status) => format!("{} without an answer, after {} answers", ending(status), self.answered),
            Err(_) => "closed its stdout without an answer".into(),
        };
        self.gone(wrong, stray)
    }

    fn gone(&mut self, wrong: String, stray: &[String]) -> ServerError {
        self.process.kill();
        let said = stray.iter().map(|line| quoted(line)).collect::<Vec<_>>().join(", ");
        let said = match said.is_empty() {
            true => String::new(),
            false => format!("; its stdout held {said}, which is no answer"),
        };
        ServerError::Gone(format!("{wrong}{said}; {}", self.process.stderr.shown()))
    }
}

impl Drop for Server {
    /// Closes the program's stdin, which tells the program to end. A program that does not end within [`GRACE`] is killed.
    fn drop(&mut self) {
        drop(self.requests.take());
        let _ = self.process.wait(Limits::GRACE);
    }
}

fn answer(line: &str) -> Option<Answer> {
    serde_json::from_str(line).ok()
}

/// Sends every line of stdout to the channel until the stream ends or the receiver is gone. Lines are split at [`KEPT`] bytes.
fn read_lines(stdout: ChildStdout, send: &SyncSender<String>) {
    let mut stdout = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        let read = (&mut stdout).take(KEPT as u64).read_until(b'\n', &mut line);
        if !matches!(read, Ok(1..)) {
            return;
        }
        let text = String::from_utf8_lossy(&line);
        if !text.trim().is_empty() && send.send(text.trim().to_string()).is_err() {
            return;
        }
    }
}

/// The last bytes that a program wrote to stderr, at most [`KEPT`].
struct Tail {
    text: Arc<Mutex<VecDeque<u8>>>,
    /// Channel that is disconnected when the program's stderr has ended.
    ended: Receiver<()>,
}

impl Tail {
    fn new(mut stderr: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(VecDeque::new()));
        let (send, ended) = sync_channel(0);
        let kept = Arc::clone(&text);
        std::thread::spawn(move || {
            let _ends_with_the_thread = send;
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = stderr.read(&mut bytes) {
                let mut kept = lock(&kept);
                kept.extend(&bytes[..read]);
                let over = kept.len().saturating_sub(KEPT);
                kept.drain(..over);
            }
        });
        Self { text, ended }
    }

    fn clear(&self) {
        lock(&self.text).clear();
    }

    /// Waits for the end of stderr, at most [`GRACE`], and returns its last lines for an error message. The wait has a limit
    /// because a child process that left the program's group may hold the stream open after the program is killed.
    fn shown(&self) -> String {
        let _ = self.ended.recv_timeout(GRACE);
        self.so_far()
    }

    /// Same as [`shown`](Self::shown), without waiting for the end of the stream.
    fn so_far(&self) -> String {
        let bytes: Vec<u8> = lock(&self.text).iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<String> = text.lines().map(plain).collect();
        match lines[lines.len().saturating_sub(TAIL)..].join("\n  ") {
            none if none.is_empty() => "it wrote nothing to stderr".into(),
            tail => format!("the end of its stderr:\n  {tail}"),
        }
    }
}

fn lock(text: &Mutex<VecDeque<u8>>) -> MutexGuard<'_, VecDeque<u8>> {
    text.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Replaces hidden characters, such as terminal escape sequences, with spaces.
fn plain(text: &str) -> String {
    text.replace(ulplab_core::text::hidden, " ")
}

/// Returns the first 80 characters of a line in quotation marks.
fn quoted(line: &str) -> String {
    format!("'{}'", plain(&line.chars().take(80).collect::<String>()))
}
