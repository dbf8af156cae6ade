//! The servers that are compared, each with a file system made anew on the same device.

use super::work::Place;
use crate::child::{self, interrupted};
use crate::systems::kernel::{Kernel, EXT4};
use crate::systems::ours::{Ours, POOL};
use crate::systems::{System, World};
use base::{bail, Result};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::packages::{self, Programs, Set};
use testkit::TempDir;

/// How long a server may take until it answers.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server with a file system.
pub trait Server {
    /// Makes an empty file system, and serves it.
    fn make(&mut self) -> Result<()>;

    /// Forgets everything that is cached, and serves it again.
    fn cold(&mut self) -> Result<()>;

    /// Where it is served.
    fn place(&self) -> Place;

    /// Process id of the server.
    fn daemon(&self) -> Option<u32>;

    /// Ends it.
    fn end(&mut self) -> Result<()>;
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Waits until it gives the root of what it serves out.
fn wait_for(place: &Place) -> Result<()> {
    let begin = Instant::now();
    loop {
        match place.root() {
            Ok(_) => return Ok(()),
            Err(e) if begin.elapsed() > PATIENCE => return Err(e),
            Err(_) if interrupted() => bail!(Interrupted, "interrupted"),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// The server of our daemon.
pub struct Own(Ours);

impl Own {
    const PORT: u16 = 2049;

    /// Nothing is made yet.
    pub fn new(world: &Arc<World>) -> Result<Own> {
        let mut ours = Ours::new(world.clone(), &world.programs, "lz4")?;
        ours.options = vec!["--nfs-listen".into(), local(Own::PORT).to_string()];
        Ok(Own(ours))
    }
}

impl Server for Own {
    fn make(&mut self) -> Result<()> {
        self.0.make()?;
        let share = "sharenfs=rw,no_root_squash,insecure";
        self.0.admin("zfs", &["set", share, POOL])?;
        wait_for(&self.place())
    }

    fn cold(&mut self) -> Result<()> {
        self.0.cold()?;
        wait_for(&self.place())
    }

    fn place(&self) -> Place {
        Place {
            nfs: local(Own::PORT),
            mount: local(Own::PORT),
            path: self.0.dir().to_string_lossy().into_owned(),
        }
    }

    fn daemon(&self) -> Option<u32> {
        self.0.daemon()
    }

    fn end(&mut self) -> Result<()> {
        self.0.end()
    }
}

/// Debian's Ganesha over ext4.
pub struct Ganesha {
    below: Kernel,
    programs: Programs,
    dir: TempDir,
    mapper: Option<Child>,
    server: Option<Child>,
}

impl Ganesha {
    const PORT: u16 = 20_490;
    const MOUNT: u16 = 20_491;

    /// Nothing is made yet.
    pub fn new(world: &Arc<World>) -> Result<Ganesha> {
        Ok(Ganesha {
            below: Kernel::new(world.clone(), &EXT4)?,
            programs: packages::get(Set::Ganesha)?,
            dir: TempDir::new("bench-ganesha")?,
            mapper: None,
            server: None,
        })
    }

    /// A program of the packages, which finds their libraries.
    fn program(&self, name: &str) -> Result<Command> {
        let Some(path) = self.programs.find(name) else {
            bail!(Unsupported, "the packages have no {name}");
        };
        let mut libraries = self.programs.libraries();
        libraries.push(self.programs.root().join("usr/lib/ganesha"));
        let libraries: Vec<_> = libraries.iter().map(|l| l.to_string_lossy()).collect();
        let mut c = Command::new(path);
        c.env("LD_LIBRARY_PATH", libraries.join(":"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ok(c)
    }

    /// The folder of Ganesha's modules for file systems.
    fn modules(&self) -> Result<PathBuf> {
        let all = self.programs.libraries().into_iter();
        let mut all = all.map(|l| l.join("ganesha"));
        match all.find(|m| m.join("libfsalvfs.so").is_file()) {
            Some(m) => Ok(m),
            None => bail!(Unsupported, "the packages have no libfsalvfs.so"),
        }
    }

    fn settings(&self) -> Result<String> {
        let (port, mount) = (Ganesha::PORT, Ganesha::MOUNT);
        let modules = self.modules()?;
        Ok(format!(
            "NFS_CORE_PARAM {{ Protocols = 3; NFS_Port = {port}; MNT_Port = {mount}; Enable_NLM = false;\n\
             Enable_RQUOTA = false; Plugins_Dir = {}; }}\n\
             NFS_KRB5 {{ Active_krb5 = false; }}\n\
             NFSv4 {{ UseGetpwnam = true; DomainName = bench; }}\n\
             EXPORT {{ Export_Id = 1; Path = {}; Pseudo = /bench; Access_Type = RW; Squash = No_Root_Squash;\n\
             SecType = sys; Protocols = 3; Transports = TCP; PrivilegedPort = false; FSAL {{ Name = VFS; }} }}\n",
            modules.display(),
            self.below.dir().display(),
        ))
    }

    fn start(&mut self) -> Result<()> {
        if self.mapper.is_none() {
            std::fs::create_dir_all("/run/rpcbind")?;
            self.mapper = Some(child::spawn(self.program("rpcbind")?.args(["-f", "-w"]))?);
            // It says nothing when it is ready.
            std::thread::sleep(Duration::from_millis(500));
        }
        let file = |name: &str| self.dir.path().join(name);
        std::fs::write(file("conf"), self.settings()?)?;
        let mut c = self.program("ganesha.nfsd")?;
        let option = |c: &mut Command, name: &str, value: &Path| {
            c.arg(name).arg(value);
        };
        c.arg("-F");
        option(&mut c, "-L", &file("log"));
        option(&mut c, "-f", &file("conf"));
        option(&mut c, "-p", &file("pid"));
        self.server = Some(child::spawn(&mut c)?);
        wait_for(&self.place()).map_err(|e| {
            let log = std::fs::read_to_string(file("log")).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(3).collect();
            e.context(format!("Ganesha does not answer ({})", last.join("; ")))
        })
    }

    fn stop(&mut self) {
        if let Some(mut s) = self.server.take() {
            child::stop(&mut s);
        }
    }
}

impl Server for Ganesha {
    fn make(&mut self) -> Result<()> {
        self.below.make()?;
        self.start()
    }

    fn cold(&mut self) -> Result<()> {
        self.stop();
        self.below.cold()?;
        self.start()
    }

    fn place(&self) -> Place {
        Place {
            nfs: local(Ganesha::PORT),
            mount: local(Ganesha::MOUNT),
            path: self.below.dir().to_string_lossy().into_owned(),
        }
    }

    fn daemon(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }

    fn end(&mut self) -> Result<()> {
        self.stop();
        if let Some(mut m) = self.mapper.take() {
            child::stop(&mut m);
        }
        self.below.end()
    }
}

impl Drop for Ganesha {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            eprintln!("bench: {e}");
        }
    }
}
