//! Runs all tests of the workspace: builds them once, then runs the test binaries in two lanes.
//!
//! `cargo test` runs one binary after the other. Those that drive real programs mostly wait for them, those of the
//! engine compute; one of either kind at a time keeps two processors busy.
//!
//! 1. Of the binaries that look at the whole machine, as those of `system-tests` do, only one runs at a time.
//! 2. Every binary runs once, but for 4. Its output is printed in one piece when it has ended.
//! 3. A binary that fails or is killed makes the run fail and is named at the end.
//! 4. One that does not end within [`LIMIT`] is killed, and runs once more, alone, when all others have ended: the run fails if that fails. What
//!    its threads waited for is printed, and it is named at the end (`hung:`), also if the second run passed.

use rustix::process::{kill_process_group, waitid, Pid, Signal, WaitId, WaitIdOptions};
use serde_json::Value;
use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A binary that runs for longer hangs: it is killed with the processes it started. The longest takes a third of this on two
/// processors that do nothing else.
const LIMIT: Duration = Duration::from_secs(600);

/// A killed binary that is still there after this waits in the kernel for something that does not come. The run goes on
/// without it.
const GIVEN_UP: Duration = Duration::from_secs(20);

/// Packages and test binaries that run one at a time, in the first lane: they look at the mounts and processes of the whole
/// machine, or copy its mounts into a namespace (zfs-fuse 0.7), which keeps them busy for a moment. `*`: all of a package.
const ALONE: [(&str, &str); 3] = [
    ("system-tests", "*"),
    ("testkit", "oracles"),
    ("zpl", "exchange"),
];

/// Test binaries that take more than ten seconds of processor time, longest first. The others follow by name.
const LONG: [(&str, &str); 18] = [
    ("zpl", "fixtures"),
    ("system-tests", "trees"),
    ("pool", "crash"),
    ("system-tests", "plug"),
    ("system-tests", "power_cuts"),
    ("system-tests", "every_pool"),
    ("pool", "real_pools"),
    ("sim", "seeds"),
    ("zpl", "exchange"),
    ("dmu", "model"),
    ("system-tests", "damage"),
    ("system-tests", "old_pools"),
    ("system-tests", "old"),
    ("pool", "images"),
    ("pool", "mutants"),
    ("system-tests", "datasets"),
    ("system-tests", "suspended"),
    ("dsl", "dsl"),
];

/// A test binary, or the documentation tests of all crates.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Job {
    package: String,
    target: String,
    /// `lib`, `bin` or `test`; `doc` for the documentation tests.
    kind: String,
    program: PathBuf,
    /// Where it runs: the folder of its package.
    dir: PathBuf,
}

impl Job {
    /// What cargo takes to run it alone.
    fn selection(&self) -> String {
        match self.kind.as_str() {
            "lib" | "doc" => format!("-p {} --{}", self.package, self.kind),
            kind => format!("-p {} --{kind} {}", self.package, self.target),
        }
    }

    fn alone(&self) -> bool {
        let of = |t: &str| t == "*" || t == self.target;
        ALONE.iter().any(|(p, t)| self.package == *p && of(t))
    }

    fn rank(&self) -> usize {
        let at = LONG
            .iter()
            .position(|(p, t)| self.package == *p && self.target == *t);
        at.unwrap_or(LONG.len())
    }
}

/// How a job ended.
struct Outcome {
    job: Job,
    wall: Duration,
    /// Seconds of processor time of the binary and of the processes it waited for.
    cpu: f64,
    failure: Option<String>,
    /// The last lines it wrote, if it failed without a summary of failures.
    last: String,
    /// Tests that had run for a minute and did not end.
    unfinished: Vec<String>,
    hung: bool,
}

/// `cargo xtask test [-p PACKAGE]... [--lanes N]`: builds the tests, runs them, prints their output and then a table of times.
pub fn run(root: &Path, args: &[&str]) -> Result<ExitCode, String> {
    let (packages, lanes) = options(args)?;
    let (jobs, programs) = build(root, &packages)?;
    if jobs.is_empty() {
        return Err("no test binary was built".into());
    }
    let logs = root.join("target/test-logs/binaries");
    std::fs::create_dir_all(&logs).map_err(|e| format!("cannot make {}: {e}", logs.display()))?;
    let mut outcomes = in_lanes(jobs, lanes, |job| {
        run_one(job, &logs, programs.as_deref(), LIMIT)
    });
    for o in outcomes.iter_mut().filter(|o| o.hung) {
        println!("hung: {}", o.job.selection());
        for name in &o.unfinished {
            println!("unfinished: {name}");
        }
        *o = run_one(o.job.clone(), &logs, programs.as_deref(), LIMIT);
    }
    print!("{}", table(&outcomes));
    let failed: Vec<&Outcome> = outcomes.iter().filter(|o| o.failure.is_some()).collect();
    for o in &failed {
        let (rerun, why) = (o.job.selection(), o.failure.as_deref().unwrap_or_default());
        println!(
            "error: test failed, to rerun pass `{rerun}`: {why}\n{}",
            o.last
        );
    }
    Ok(crate::code(failed.is_empty()))
}

fn options(args: &[&str]) -> Result<(Vec<String>, usize), String> {
    let (mut packages, mut lanes) = (Vec::new(), 2);
    let mut rest = args.iter();
    while let Some(option) = rest.next() {
        let value = rest.next().ok_or(format!("{option} takes a value"))?;
        match *option {
            "-p" => packages.push(value.to_string()),
            "--lanes" => {
                lanes = value
                    .parse()
                    .map_err(|_| format!("not a number of lanes: {value}"))?
            }
            _ => return Err(format!("test takes -p PACKAGE and --lanes N, not {option}")),
        }
    }
    Ok((packages, lanes))
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Builds the test binaries. Gives them, and the folder of the programs if all of the workspace was built: `system-tests`
/// drives those, with the feature that lets devices fail on request.
fn build(root: &Path, packages: &[String]) -> Result<(Vec<Job>, Option<PathBuf>), String> {
    let mut c = cargo();
    c.current_dir(root).args([
        "test",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    if packages.is_empty() {
        c.args(["--workspace", "--features", "daemon/faults"]);
    }
    c.args(packages.iter().flat_map(|p| ["-p", p.as_str()]));
    let out = c
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cannot run cargo: {e}"))?;
    if !out.status.success() {
        return Err("the tests do not build".into());
    }
    let (mut jobs, programs) = artifacts(&String::from_utf8_lossy(&out.stdout))?;
    if packages.is_empty() {
        jobs.push(Job {
            package: "workspace".into(),
            target: "documentation".into(),
            kind: "doc".into(),
            program: "cargo".into(),
            dir: root.into(),
        });
    }
    jobs.sort_by_key(|j| (j.rank(), j.package.clone(), j.target.clone()));
    Ok((jobs, programs.filter(|_| packages.is_empty())))
}

/// Test binaries in what cargo says of a build, and the folder of `zfs-fuse`.
fn artifacts(messages: &str) -> Result<(Vec<Job>, Option<PathBuf>), String> {
    let (mut jobs, mut programs) = (Vec::new(), None);
    for line in messages.lines() {
        let m: Value = serde_json::from_str(line).map_err(|e| format!("cargo said {line}: {e}"))?;
        let Some(program) = m["executable"].as_str().map(PathBuf::from) else {
            continue;
        };
        let target = m["target"]["name"].as_str().unwrap_or_default();
        if m["profile"]["test"] != true {
            if target == "zfs-fuse" {
                programs = program.parent().map(Path::to_path_buf);
            }
            continue;
        }
        let manifest = Path::new(m["manifest_path"].as_str().unwrap_or_default());
        let dir = manifest.parent().unwrap_or(manifest).to_path_buf();
        jobs.push(Job {
            package: dir
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            target: target.into(),
            kind: m["target"]["kind"][0].as_str().unwrap_or_default().into(),
            program,
            dir,
        });
    }
    Ok((jobs, programs))
}

/// What is left to run.
struct Queues {
    alone: VecDeque<Job>,
    others: VecDeque<Job>,
    /// One of `alone` runs.
    busy: bool,
}

impl Queues {
    fn new(jobs: Vec<Job>) -> Queues {
        let (alone, others) = jobs.into_iter().partition(Job::alone);
        Queues {
            alone,
            others,
            busy: false,
        }
    }

    /// The next job of a lane. The first lane prefers those that run alone; the other lanes take them last.
    fn next(&mut self, lane: usize) -> Option<Job> {
        let may = !self.busy && (lane == 0 || self.others.is_empty());
        if may && !self.alone.is_empty() {
            self.busy = true;
            return self.alone.pop_front();
        }
        self.others.pop_front()
    }
}

/// Runs all jobs, at most `lanes` at a time.
fn in_lanes(jobs: Vec<Job>, lanes: usize, run: impl Fn(Job) -> Outcome + Sync) -> Vec<Outcome> {
    let queues = Mutex::new(Queues::new(jobs));
    let done = Mutex::new(Vec::new());
    let (queues_of, done_of, run) = (&queues, &done, &run);
    std::thread::scope(|s| {
        for lane in 0..lanes.max(1) {
            s.spawn(move || {
                loop {
                    // Not held while the job runs.
                    let next = locked(queues_of).next(lane);
                    let Some(job) = next else { break };
                    let alone = job.alone();
                    let outcome = run(job);
                    if alone {
                        locked(queues_of).busy = false;
                    }
                    locked(done_of).push(outcome);
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(|e| e.into_inner())
}

fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}

/// Runs one binary and prints all it said.
fn run_one(job: Job, logs: &Path, programs: Option<&Path>, limit: Duration) -> Outcome {
    let log = logs.join(format!("{}.{}.{}.log", job.package, job.target, job.kind));
    let started = Instant::now();
    let ran = start(&job, &log, programs).and_then(|child| wait(child, limit));
    let mut waits = None;
    let (cpu, failure) = match ran {
        Ok((cpu, Ended::With(status))) if status.success() => (cpu, None),
        Ok((cpu, Ended::With(status))) => (cpu, Some(status.to_string())),
        Ok((cpu, Ended::Never(why))) => {
            waits = Some(why);
            let after = limit.as_secs();
            (
                cpu,
                Some(format!("it did not end within {after} s and was killed")),
            )
        }
        Err(e) => (0.0, Some(e)),
    };
    let said = std::fs::read(&log).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    // The first line as cargo writes it. In one call, so that the other lanes' output does not come between.
    let (selection, program) = (job.selection(), job.program.display());
    let waited = waits.as_deref().unwrap_or_default();
    print!("     Running {selection} ({program})\n{said}{waited}");
    let unsaid = failure.is_some() && !said.contains("\nfailures:");
    Outcome {
        job,
        wall: started.elapsed(),
        cpu,
        failure,
        last: if unsaid {
            last_lines(&said, 30)
        } else {
            String::new()
        },
        unfinished: unfinished(&said),
        hung: waits.is_some(),
    }
}

/// Tests that the test runner named as long ones and that have no result.
fn unfinished(text: &str) -> Vec<String> {
    let named = |end: &'static str| {
        text.lines()
            .filter_map(move |l| l.strip_prefix("test ")?.split_once(end))
            .map(|(name, _)| name)
    };
    let ended: BTreeSet<&str> = named(" ... ").collect();
    named(" has been running for over")
        .filter(|name| !ended.contains(name))
        .map(String::from)
        .collect()
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

fn start(job: &Job, log: &Path, programs: Option<&Path>) -> Result<Child, String> {
    let cannot = |e| format!("cannot start {}: {e}", job.program.display());
    let out = File::create(log).map_err(|e| format!("cannot write {}: {e}", log.display()))?;
    let mut c = match job.kind.as_str() {
        "doc" => {
            let mut c = cargo();
            c.args(["test", "--workspace", "--doc", "--no-fail-fast"]);
            c
        }
        _ => {
            let mut c = Command::new(&job.program);
            c.arg("--show-output");
            c
        }
    };
    c.current_dir(&job.dir).env("CARGO_MANIFEST_DIR", &job.dir);
    if let Some(dir) = programs {
        c.env("ZFS_FUSE_TEST_BIN", dir);
    }
    c.stdin(Stdio::null())
        .stdout(out.try_clone().map_err(cannot)?);
    // A group of its own, so that what it started can be killed with it.
    c.process_group(0).stderr(out).spawn().map_err(cannot)
}

enum Ended {
    With(ExitStatus),
    /// It was killed. What its threads and those of its children waited for, a line each.
    Never(String),
}

/// What threads of a process and of its children wait for in the kernel. Only files of `/proc` that never wait for the process itself
/// are read.
fn waits(process: &str, deep: usize) -> String {
    let mut out = String::new();
    let tasks = std::fs::read_dir(format!("/proc/{process}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let read = |name: &str| {
            let text = std::fs::read_to_string(task.path().join(name));
            text.unwrap_or_default().trim().replace('\n', " < ")
        };
        let (name, call, stack) = (read("comm"), read("syscall"), read("stack"));
        let thread = task.file_name();
        out += &format!(
            "waits: {process}/{} {name}: {call}: {stack}\n",
            thread.to_string_lossy()
        );
        for child in read("children").split(' ').filter(|c| !c.is_empty()) {
            if deep > 0 {
                out += &waits(child, deep - 1);
            }
        }
    }
    out
}

/// Waits for a child that leads a process group. Gives the seconds of processor time that it and the processes it waited
/// for took.
fn wait(mut child: Child, limit: Duration) -> Result<(f64, Ended), String> {
    let started = Instant::now();
    let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let id = id.ok_or("a process without a number")?;
    let mut killed: Option<(Instant, String)> = None;
    // It stays a zombie, whose times can be read, until `child.wait`.
    let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    while waitid(WaitId::Pid(id), how)
        .map_err(|e| format!("cannot wait: {e}"))?
        .is_none()
    {
        match &killed {
            None if started.elapsed() > limit => {
                let why = waits(&child.id().to_string(), 5);
                killed = Some((Instant::now(), why));
                kill_process_group(id, Signal::KILL).map_err(|e| format!("cannot kill it: {e}"))?;
            }
            Some((at, why)) if at.elapsed() > GIVEN_UP => {
                return Ok((0.0, Ended::Never(why.clone())))
            }
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    let status = child.wait().map_err(|e| format!("cannot wait: {e}"))?;
    let ended = match killed {
        Some((_, why)) => Ended::Never(why),
        None => Ended::With(status),
    };
    Ok((cpu_seconds(&stat), ended))
}

/// Own time and that of children waited for, of user and kernel, in `/proc/PID/stat`.
fn cpu_seconds(stat: &str) -> f64 {
    // The second field is a name in parentheses, which may hold anything. Linux counts 100 ticks a second here.
    let fields = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace();
    let ticks: f64 = fields
        .skip(11)
        .take(4)
        .filter_map(|f| f.parse::<f64>().ok())
        .sum();
    ticks / 100.0
}

/// The times of the binaries, longest first.
fn table(outcomes: &[Outcome]) -> String {
    let mut sorted: Vec<&Outcome> = outcomes.iter().collect();
    sorted.sort_by_key(|o| std::cmp::Reverse(o.wall));
    let mut out = String::from("times: seconds, seconds of processor time, binary\n");
    for o in &sorted {
        let wall = o.wall.as_secs_f64();
        out += &format!("{wall:8.1} {:8.1}  {}\n", o.cpu, o.job.selection());
    }
    let cpu: f64 = outcomes.iter().map(|o| o.cpu).sum();
    out + &format!(
        "{cpu:.0} s of processor time in {} binaries\n",
        outcomes.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    fn job(package: &str, target: &str, program: &str) -> Job {
        Job {
            package: package.into(),
            target: target.into(),
            kind: "test".into(),
            program: program.into(),
            dir: "/".into(),
        }
    }

    fn outcome(job: Job, failure: Option<String>) -> Outcome {
        Outcome {
            job,
            wall: Duration::ZERO,
            cpu: 0.0,
            failure,
            last: String::new(),
            unfinished: Vec::new(),
            hung: false,
        }
    }

    #[test]
    fn a_long_test_without_a_result_is_unfinished() {
        let said = "test a ... ok\ntest b has been running for over 60 seconds\n\
                    test c::d has been running for over 60 seconds\ntest b ... FAILED\n";
        assert_eq!(unfinished(said), ["c::d"]);
        assert!(unfinished("").is_empty());
    }

    #[test]
    fn every_binary_runs_once_and_those_of_system_tests_one_at_a_time() {
        let mut jobs: Vec<Job> = (0..20)
            .map(|n| job("system-tests", &n.to_string(), "x"))
            .collect();
        jobs.extend((0..20).map(|n| job("dmu", &n.to_string(), "x")));
        let (running, alone, most) = (Mutex::new(0), Mutex::new(0), Mutex::new(0));
        let outcomes = in_lanes(jobs.clone(), 4, |j| {
            *locked(&running) += 1;
            *locked(&alone) += i32::from(j.alone());
            assert!(*locked(&alone) < 2);
            let now = *locked(&running);
            let before = *locked(&most);
            *locked(&most) = before.max(now);
            std::thread::sleep(Duration::from_millis(2));
            *locked(&running) -= 1;
            *locked(&alone) -= i32::from(j.alone());
            outcome(j, None)
        });
        let mut ran: Vec<String> = outcomes.iter().map(|o| o.job.selection()).collect();
        let mut want: Vec<String> = jobs.iter().map(Job::selection).collect();
        ran.sort();
        want.sort();
        assert_eq!(ran, want);
        let most = *locked(&most);
        assert!((2..=4).contains(&most), "{most}");
    }

    #[test]
    fn lanes_share_the_work() {
        let mut q = Queues::new(vec![
            job("dmu", "a", ""),
            job("system-tests", "b", ""),
            job("system-tests", "c", ""),
        ]);
        let mut next = |lane| q.next(lane).map(|j| j.target);
        assert_eq!(next(0).as_deref(), Some("b"));
        assert_eq!(next(1).as_deref(), Some("a"));
        assert_eq!(next(1), None, "while b runs");
        q.busy = false;
        assert_eq!(q.next(1).map(|j| j.target).as_deref(), Some("c"));
    }

    #[test]
    fn an_end_is_told_as_it_was() {
        let dir = std::env::temp_dir().join(format!("xtask-tests-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for (program, limit, want) in [
            ("/bin/true", 60, None),
            ("/bin/false", 60, Some("exit status: 1")),
            ("/nowhere/at-all", 60, Some("cannot start")),
        ] {
            let o = run_one(
                job("p", "t", program),
                &dir,
                None,
                Duration::from_secs(limit),
            );
            let said = o.failure.unwrap_or_default();
            assert_eq!(said.is_empty(), want.is_none(), "{program}: {said}");
            assert!(said.contains(want.unwrap_or_default()), "{program}: {said}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn last_words() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("", 2), "");
    }

    #[test]
    fn what_hangs_is_killed() {
        let mut hangs = Command::new("sh");
        hangs
            .args(["-c", "sleep 600 & echo $!; wait"])
            .process_group(0);
        let mut hangs = hangs.stdout(Stdio::piped()).spawn().unwrap();
        let mut its_own = String::new();
        BufReader::new(hangs.stdout.take().unwrap())
            .read_line(&mut its_own)
            .unwrap();
        let (_, ended) = wait(hangs, Duration::ZERO).unwrap();
        let Ended::Never(why) = ended else {
            panic!("it was not killed");
        };
        // The shell and what it has started.
        assert!(why.lines().count() >= 2, "{why}");
        // Nobody may have waited for it yet.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", its_own.trim()));
        let state = stat.unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z "), "{state}");
    }

    #[test]
    fn what_cargo_says() {
        let line = |name: &str, test: bool, exe: &str| {
            serde_json::json!({
                "reason": "compiler-artifact", "manifest_path": "/w/crates/pool/Cargo.toml",
                "target": { "name": name, "kind": ["test"] },
                "profile": { "test": test }, "executable": exe,
            })
            .to_string()
        };
        let none = "{\"reason\":\"build-finished\",\"success\":true}";
        let text = [
            line("crash", true, "/t/deps/crash-1"),
            line("zfs-fuse", false, "/t/zfs-fuse"),
        ];
        let (jobs, programs) = artifacts(&format!("{}\n{none}\n", text.join("\n"))).unwrap();
        assert_eq!(programs.as_deref(), Some(Path::new("/t")));
        let shown: Vec<String> = jobs.iter().map(Job::selection).collect();
        assert_eq!(shown, ["-p pool --test crash"]);
        assert_eq!(jobs[0].dir, Path::new("/w/crates/pool"));
        assert!(artifacts("not JSON").is_err());
    }

    #[test]
    fn processor_time() {
        let stat = "12 (a b) c) Z 1 1 1 0 -1 4 1 2 3 4 100 50 25 25 20 0 1";
        assert_eq!(cpu_seconds(stat), 2.0);
        assert_eq!(cpu_seconds(""), 0.0);
    }
}
