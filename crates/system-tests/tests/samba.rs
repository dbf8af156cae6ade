//! Shares of Samba (`sharesmb`), made with its net(8) and used with its own server and client.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Child;
use system_tests::{until, Rig};

/// Samba with a configuration of its own, below the rig.
struct Samba {
    port: u16,
    server: Child,
}

impl Drop for Samba {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn has(program: &str) -> bool {
    ["/usr/bin", "/usr/sbin"]
        .iter()
        .any(|dir| Path::new(dir).join(program).exists())
}

/// Writes the configuration. The daemon that is started later finds it, too.
fn configure(rig: &mut Rig, most: u32) {
    let dir = rig.path().join("samba");
    for sub in [
        "private", "lock", "state", "cache", "pid", "rpc", "shares", "log",
    ] {
        fs::create_dir_all(dir.join(sub)).unwrap();
    }
    fs::set_permissions(dir.join("shares"), PermissionsExt::from_mode(0o1770)).unwrap();
    let d = dir.display();
    let text = format!(
        "[global]\nserver role = standalone server\nworkgroup = TEST\ninterfaces = lo\nbind interfaces only = yes\n\
         private dir = {d}/private\nlock directory = {d}/lock\nstate directory = {d}/state\ncache directory = {d}/cache\n\
         pid directory = {d}/pid\nncalrpc dir = {d}/rpc\nlog file = {d}/log/log\ndisable spoolss = yes\nload printers = no\n\
         disable netbios = yes\nusershare path = {d}/shares\nusershare max shares = {most}\nusershare owner only = no\n\
         vfs objects = shadow_copy2\nshadow:snapdir = .zfs/snapshot\nshadow:sort = desc\nshadow:format = auto-%Y-%m-%d-%H%M\n"
    );
    let file = dir.join("smb.conf");
    fs::write(&file, text).unwrap();
    rig.variable("SMB_CONF_PATH", file.to_str().unwrap());
}

fn serve(rig: &Rig) -> Samba {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    rig.sh("printf 'pw\\npw\\n' | smbpasswd -L -c $SMB_CONF_PATH -s -a root >/dev/null");
    let mut c = rig.command(
        "smbd",
        &["-F", "--no-process-group", "-p", &port.to_string()],
    );
    // When it ends, it ends its group.
    let server = c.process_group(0).spawn().unwrap();
    let samba = Samba { port, server };
    until("smbd answers", || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    samba
}

/// A rig that may use Samba; `None` after saying why.
fn rig(name: &str) -> Option<Rig> {
    if !["smbd", "smbclient", "net", "smbpasswd"]
        .iter()
        .all(|p| has(p))
    {
        eprintln!("skipped: {name} needs Samba (smbd, smbclient, net)");
        return None;
    }
    // Debian has the modules in a package of their own.
    let module = fs::read_dir("/usr/lib").is_ok_and(|mut all| {
        let is_there = |at: &Path| at.join("samba/vfs/shadow_copy2.so").exists();
        is_there(Path::new("/usr/lib")) || all.any(|e| e.is_ok_and(|e| is_there(&e.path())))
    });
    if !module {
        eprintln!("skipped: {name} needs Samba's module shadow_copy2 (samba-vfs-modules)");
        return None;
    }
    Rig::as_root(name)
}

#[test]
fn file_systems_are_shared_by_samba_with_their_snapshots() {
    let Some(mut rig) = rig("samba") else {
        return;
    };
    configure(&mut rig, 100);
    let (mut rig, mnt) = rig.with_tank(256 << 20);
    let samba = serve(&rig);
    let port = samba.port;
    let run = |rig: &Rig, share: &str, what: &str| {
        let script = format!("smbclient //127.0.0.1/{share} -p {port} -U root%pw -c '{what}' 2>&1");
        rig.try_run("sh", &["-c", &script])
    };
    let shares = |rig: &Rig| -> Vec<String> {
        let list = rig.sh("net usershare list");
        let mut names: Vec<String> = list.split_whitespace().map(String::from).collect();
        names.sort();
        names
    };
    rig.zfs(&["create", "-o", "sharesmb=on", "tank/my files"]);
    fs::write(mnt.join("my files/f"), "one").unwrap();
    until("it is shared", || shares(&rig) == ["tank_my_files"]);
    rig.sh(&format!("cd {}; printf two >up", rig.path().display()));
    let up = rig.path().join("up");
    run(
        &rig,
        "tank_my_files",
        &format!("put {} g; get f -; ls", up.display()),
    )
    .ok();
    assert_eq!(fs::read_to_string(mnt.join("my files/g")).unwrap(), "two");
    // Snapshots are the earlier versions of a file.
    rig.zfs(&["snapshot", "tank/my files@auto-2026-01-02-0304"]);
    fs::write(mnt.join("my files/f"), "changed").unwrap();
    let said = run(&rig, "tank_my_files", "allinfo f").ok();
    assert!(said.contains("@GMT-2026.01.02-03.04.00"), "{said}");
    let down = rig.path().join("down");
    let get = format!("get @GMT-2026.01.02-03.04.00\\f {}", down.display());
    run(&rig, "tank_my_files", &get).ok();
    assert_eq!(fs::read_to_string(&down).unwrap(), "one");
    // What comes and goes: the property, new names, mounts, `zfs unshare`.
    rig.zfs(&["set", "sharesmb=off", "tank/my files"]);
    assert_eq!(shares(&rig), [""; 0]);
    run(&rig, "tank_my_files", "ls").fails(1);
    rig.zfs(&["set", "sharesmb=on", "tank"]);
    assert_eq!(shares(&rig), ["tank"]);
    rig.zfs(&["inherit", "sharesmb", "tank/my files"]);
    assert_eq!(shares(&rig), ["tank", "tank_my_files"]);
    rig.zfs(&["unshare", "tank/my files"]);
    assert_eq!(shares(&rig), ["tank"]);
    let said = rig.try_run("zfs", &["unshare", "tank/my files"]).fails(1);
    assert!(said.contains("not currently shared"), "{said}");
    rig.zfs(&["share", "-a", "nfs"]);
    assert_eq!(shares(&rig), ["tank"]);
    rig.zfs(&["share", "-a", "smb"]);
    assert_eq!(shares(&rig), ["tank", "tank_my_files"]);
    rig.zfs(&["rename", "tank/my files", "tank/other"]);
    until("the new name is shared", || {
        shares(&rig) == ["tank", "tank_other"]
    });
    run(&rig, "tank_other", "ls").ok();
    // What a killed daemon left is taken up by the next one; what others share is not touched.
    rig.sh(&format!(
        "mkdir -p {0}/else && net usershare add else {0}/else",
        rig.path().display()
    ));
    rig.kill();
    rig.start();
    rig.zfs(&["set", "sharesmb=off", "tank/other"]);
    assert_eq!(shares(&rig), ["else", "tank"]);
    rig.zpool(&["export", "tank"]);
    until("nothing is shared", || shares(&rig) == ["else"]);
    rig.stop();
    rig.zdb_check("tank");
}

#[test]
fn what_is_missing_is_said() {
    let Some(mut rig) = rig("samba-missing") else {
        return;
    };
    configure(&mut rig, 0);
    let (mut rig, _) = rig.with_tank(128 << 20);
    let said = rig.try_run("zfs", &["set", "sharesmb=on", "tank"]);
    let said = format!("{}{}", said.out, said.err);
    assert!(
        said.contains("unable to reshare") && said.contains("usershares are currently disabled"),
        "{said}"
    );
    let said = rig.try_run("zfs", &["share", "tank"]).fails(1);
    assert!(said.contains("usershares are currently disabled"), "{said}");
    for bad in ["sharesmb=perhaps", "sharesmb=name=x"] {
        let said = rig.try_run("zfs", &["set", bad, "tank"]).fails(1);
        assert!(said.contains("cannot be set to invalid options"), "{said}");
    }
    rig.zpool(&["export", "tank"]);
    rig.stop();
}
