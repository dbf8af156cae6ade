//! Processors that stay awake while a session is busy.
//!
//! A request and its answer are two wake-ups of a thread, as a rule on a processor that has nothing
//! else to do and sleeps. Waking it costs more than the work: on a quiet two-core virtual machine a
//! round trip took 23 to 60 µs, and 11 with processors that do not sleep. Linux lets a process say
//! so: while a file is open at `/dev/cpu_dma_latency`, idle processors use no state that takes longer
//! to leave than the number of microseconds written to it, four bytes in host order
//! (Documentation/power/pm_qos_interface.rst of Linux; 0 means that they poll).
//!
//! The number is in force while requests come: the sentinel ([`crate::worker_pool`]) looks every
//! millisecond. An idle file system asks for nothing. Nor does one that uses its devices, if processors
//! were to poll: on a virtual machine that has no more processors of its host than it thinks it has,
//! those who serve its devices wait for one that polls to be taken away. There reads at random places
//! went from 2,200 to 450 a second, and fsync from 3,700 to 210.
//!
//! Whoever may not open that file helps himself to half of it: while requests come, one thread of
//! the process looks for the next request for up to [`SPIN`] before it sleeps, as long as that is
//! not in vain too often. (With processors that do not sleep it is no gain.)
//!
//! Where the kernel has no cpuidle driver, as in many virtual machines ([`DRIVER`] says `none`), every idle processor halts,
//! whatever is written to that file. There threads of the daemon keep the processors awake ([`crate::awake`]), if they are
//! few, or one thread looks for the next request, as above.

use crate::awake;
use base::sync::MutexExt;
use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};

/// The driver that puts processors to sleep; it alone looks at `/dev/cpu_dma_latency`.
const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
/// The kernel's value for "no matter" (µs).
const NO_MATTER: i32 = 2_000_000_000;
/// Looks of the sentinel that are remembered.
const WINDOW: u32 = 8;
/// So many of them must have found requests for processors to be kept awake, …
const ENOUGH: u32 = 3;
/// … and after so many in a row without, they may sleep.
const QUIET: u32 = 16;

/// How long a thread looks for the next request before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// So many times in vain in a row, and …
const IN_VAIN: u32 = 4;
/// … the thread does without as often.
const PAUSE: u32 = 64;

/// What is done while requests come.
enum Means<W> {
    /// A latency (µs) is asked for there.
    Ask(W, i32),
    /// A thread spins.
    Spin,
    /// Threads keep the processors awake.
    KeepAwake,
    /// Nothing.
    None,
}

/// How long processors may take to wake up, and what is done so that they take no longer.
struct WakeupLatency<W> {
    means: Means<W>,
    /// One bit for each look, the latest lowest: whether there were requests.
    looks: u32,
    held: bool,
    /// Whether devices were used since it was last asked.
    devices_used: fn() -> bool,
}

fn never() -> bool {
    false
}

impl<W: Write> WakeupLatency<W> {
    const fn by(means: Means<W>) -> WakeupLatency<W> {
        WakeupLatency {
            means,
            looks: 0,
            held: false,
            devices_used: never,
        }
    }

    fn asking(mut out: W, latency: i32) -> io::Result<WakeupLatency<W>> {
        // Opening alone asks for nothing; that it can be written is worth knowing now.
        out.write_all(&NO_MATTER.to_ne_bytes())?;
        Ok(WakeupLatency::by(Means::Ask(out, latency)))
    }

    /// Whether devices would have to wait for processors that do not sleep.
    fn in_the_way(&self) -> bool {
        match self.means {
            Means::Ask(_, latency) => latency == 0,
            Means::Spin | Means::KeepAwake => true,
            Means::None => false,
        }
    }

    fn look(&mut self, busy: bool) {
        if self.in_the_way() && (self.devices_used)() {
            return self.rest();
        }
        self.looks = self.looks << 1 | u32::from(busy);
        let recent = self.looks & ((1 << WINDOW) - 1);
        let hold = match self.held {
            false => recent.count_ones() >= ENOUGH,
            true => self.looks.trailing_zeros() < QUIET,
        };
        self.hold(hold);
    }

    fn hold(&mut self, hold: bool) {
        if hold != self.held {
            match &mut self.means {
                Means::Ask(out, latency) => {
                    let latency = if hold { *latency } else { NO_MATTER };
                    // A failure costs speed only.
                    let _ = out.write_all(&latency.to_ne_bytes());
                }
                Means::Spin => SPINNING.store(hold, SeqCst),
                Means::KeepAwake => awake::keep(hold),
                Means::None => {}
            }
            self.held = hold;
        }
    }

    fn rest(&mut self) {
        self.looks = 0;
        self.hold(false);
    }
}

static WAKEUP_LATENCY: Mutex<WakeupLatency<File>> = Mutex::new(WakeupLatency::by(Means::Spin));
/// Whether a thread shall spin.
static SPINNING: AtomicBool = AtomicBool::new(false);
/// Whether one does.
static SPINNER: AtomicBool = AtomicBool::new(false);

fn wakeup_latency() -> std::sync::MutexGuard<'static, WakeupLatency<File>> {
    WAKEUP_LATENCY.acquire()
}

/// From now on, while sessions of this process are busy, idle processors of the machine shall need
/// at most `latency` microseconds to wake up. As a rule only root may ask.
/// `devices_used` tells whether devices were used since it was last asked: then processors do not
/// poll.
///
/// Errors: `/dev/cpu_dma_latency` cannot be opened or written, or has no effect; then threads of the daemon keep few
/// processors awake, or look for requests for a moment before they sleep.
pub fn limit_wakeup_latency(latency: u32, devices_used: fn() -> bool) -> io::Result<()> {
    wakeup_latency().devices_used = devices_used;
    if has_no_driver(std::fs::read_to_string(DRIVER)) {
        let why = if awake::is_possible() {
            change_to(WakeupLatency {
                devices_used,
                ..WakeupLatency::by(Means::KeepAwake)
            });
            "the kernel has no cpuidle driver; threads of the lowest priority keep processors awake instead"
        } else {
            "the kernel has no cpuidle driver; threads look for requests before they sleep instead"
        };
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    let latency = i32::try_from(latency).map_or(NO_MATTER, |l| l.min(NO_MATTER));
    let file = privilege::acts().open_wakeup_latency()?;
    change_to(WakeupLatency {
        devices_used,
        ..WakeupLatency::asking(file, latency)?
    });
    Ok(())
}

/// Whether the kernel says that it has none. Where it does not say, as in a container without sysfs, it may have one.
fn has_no_driver(says: io::Result<String>) -> bool {
    says.is_ok_and(|driver| driver.trim() == "none")
}

/// From now on nothing is done about processors that sleep; threads do not spin either.
pub fn let_processors_sleep() {
    change_to(WakeupLatency::by(Means::None));
}

fn change_to(next: WakeupLatency<File>) {
    let mut now = wakeup_latency();
    now.rest();
    awake::want(matches!(next.means, Means::KeepAwake));
    *now = next;
}

/// A look at all sessions: whether any was busy since the last one.
pub(crate) fn look(busy: bool) {
    wakeup_latency().look(busy);
}

/// No session has anything to do; the next look comes after the next request.
pub(crate) fn rest() {
    wakeup_latency().rest();
}

/// A thread's experience with spinning.
#[derive(Default)]
pub(crate) struct Spin {
    in_vain: u32,
    pause: u32,
}

impl Spin {
    /// Looks for a request for a while, if that is the thing to do now.
    pub fn spin(&mut self, device: &File) {
        if !SPINNING.load(SeqCst) || !self.wanted() || SPINNER.swap(true, SeqCst) {
            return;
        }
        let began = Instant::now();
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let found = loop {
            let mut fds = [PollFd::new(device, PollFlags::IN)];
            // An error is for the read that follows to tell.
            if poll(&mut fds, Some(&now)).map_or(true, |n| n > 0) {
                break true;
            }
            if began.elapsed() > SPIN {
                break false;
            }
        };
        SPINNER.store(false, SeqCst);
        self.learn(found);
    }

    fn wanted(&mut self) -> bool {
        if self.pause == 0 {
            return true;
        }
        self.pause -= 1;
        false
    }

    fn learn(&mut self, found: bool) {
        self.in_vain = if found { 0 } else { self.in_vain + 1 };
        if self.in_vain == IN_VAIN {
            self.in_vain = 0;
            self.pause = PAUSE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(a: &WakeupLatency<Vec<u8>>) -> Vec<i32> {
        let Means::Ask(out, _) = &a.means else {
            panic!("asks nobody");
        };
        let words = out.chunks(4);
        words
            .map(|w| i32::from_ne_bytes(w.try_into().unwrap()))
            .collect()
    }

    #[test]
    fn what_has_no_effect_is_not_asked_for() {
        for (says, none) in [
            ("none\n", true),
            ("intel_idle\n", false),
            ("haltpoll", false),
        ] {
            assert_eq!(has_no_driver(Ok(says.into())), none, "{says}");
        }
        assert!(!has_no_driver(Err(io::ErrorKind::NotFound.into())));
        // As it is on this machine.
        let none = has_no_driver(std::fs::read_to_string(DRIVER));
        let asked = limit_wakeup_latency(u32::MAX, never);
        if none {
            assert_eq!(asked.unwrap_err().kind(), io::ErrorKind::Unsupported);
            let kept = matches!(wakeup_latency().means, Means::KeepAwake);
            assert_eq!(kept, awake::is_possible());
            assert_eq!(awake::is_wanted(), kept);
            let_processors_sleep();
            assert!(!awake::is_wanted());
        }
    }

    #[test]
    fn processors_stay_awake_while_requests_come() {
        let mut a = WakeupLatency::asking(Vec::new(), 2).unwrap();
        for _ in 0..ENOUGH - 1 {
            a.look(true);
        }
        assert_eq!(said(&a), [NO_MATTER]);
        a.look(false);
        a.look(true);
        assert_eq!(said(&a), [NO_MATTER, 2]);
        for _ in 0..QUIET - 1 {
            a.look(false);
        }
        a.look(true); // a pause, but no end
        for _ in 0..QUIET - 1 {
            a.look(false);
        }
        assert_eq!(said(&a), [NO_MATTER, 2]);
        a.look(false);
        assert_eq!(said(&a), [NO_MATTER, 2, NO_MATTER]);
        // A request now and then is no reason.
        for i in 0..100 {
            a.look(i % 4 == 0);
        }
        a.rest();
        assert_eq!(said(&a), [NO_MATTER, 2, NO_MATTER]);
    }

    #[test]
    fn processors_do_not_poll_while_devices_are_used() {
        use std::cell::Cell;
        thread_local!(static USED: Cell<bool> = const { Cell::new(false) });
        for (latency, polls) in [(0, true), (2, false)] {
            let mut a = WakeupLatency {
                devices_used: || USED.take(),
                ..WakeupLatency::asking(Vec::new(), latency).unwrap()
            };
            for _ in 0..ENOUGH {
                a.look(true);
            }
            assert!(a.held);
            USED.set(true);
            a.look(true);
            assert_eq!(a.held, !polls);
            for _ in 0..ENOUGH - 1 {
                a.look(true);
            }
            assert_eq!(a.held, !polls);
            a.look(true);
            assert!(a.held);
        }
    }

    #[test]
    fn spinning_in_vain_is_left_alone_for_a_while() {
        let mut s = Spin::default();
        for _ in 0..IN_VAIN - 1 {
            assert!(s.wanted());
            s.learn(false);
        }
        s.learn(true);
        for _ in 0..IN_VAIN {
            assert!(s.wanted());
            s.learn(false);
        }
        assert_eq!((0..PAUSE).filter(|_| s.wanted()).count(), 0);
        assert!(s.wanted());
    }

    #[test]
    fn the_end_of_all_requests_lets_go_at_once() {
        let mut a = WakeupLatency::asking(Vec::new(), 0).unwrap();
        for _ in 0..WINDOW {
            a.look(true);
        }
        a.rest();
        a.rest();
        assert_eq!(said(&a), [NO_MATTER, 0, NO_MATTER]);
        a.look(true); // begins from nothing
        assert_eq!(said(&a).len(), 3);
    }
}
