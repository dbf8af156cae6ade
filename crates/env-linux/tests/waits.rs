//! Threads that are about to wait for a device say so, those that only compute do not.

use env::{Access, Cpu, Disks, Op};
use env_linux::{LinuxCpu, LinuxDisks};
use std::cell::Cell;
use std::fs::File;

thread_local! {
    static SAID: Cell<u32> = const { Cell::new(0) };
}

fn said() {
    SAID.with(|s| s.set(s.get() + 1));
}

/// Whether this thread says that it waits, in `f`.
fn says(f: impl FnOnce()) -> bool {
    let before = SAID.with(Cell::get);
    f();
    SAID.with(Cell::get) > before
}

#[test]
fn a_thread_says_that_it_is_about_to_wait() {
    base::waits::tell(said);
    let path = std::env::temp_dir().join(format!("env-linux-waits-{}", std::process::id()));
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let disks = LinuxDisks::new();
    let disk = disks
        .open(path.to_str().unwrap(), Access::Exclusive)
        .unwrap();
    let mut buf = [0; 4096];
    assert!(says(|| disk.read(0, &mut buf).unwrap()));
    assert!(says(|| {
        let read = Op::Read {
            offset: 0,
            buf: vec![0; 4096],
        };
        assert!(disk.batch(vec![read]).iter().all(|(_, r)| r.is_ok()));
    }));
    assert!(!says(|| {
        disk.geometry();
    }));
    let cpu = LinuxCpu::new();
    assert!(says(|| cpu.par_io(4, &|_| ())));
    assert!(!says(|| cpu.par_for(4, &|_| ())));
    std::fs::remove_file(&path).unwrap();
}
