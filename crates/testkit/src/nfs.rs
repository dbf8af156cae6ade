//! A client of NFS 3 for tests, which knows nothing of the server's code: calls put together by hand, replies taken apart.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Numbers of the programs.
pub const NFS: u32 = 100_003;
/// See [`NFS`].
pub const MOUNT: u32 = 100_005;

/// Takes a message to the server and brings the reply.
pub trait Transport {
    /// The reply to a message; none if the server hangs up, or gives none.
    fn exchange(&mut self, message: &[u8]) -> Option<Vec<u8>>;
}

/// A TCP connection.
pub struct Tcp(pub TcpStream);

impl Tcp {
    /// Connects; replies are waited for half a minute.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn connect(to: SocketAddr) -> io::Result<Tcp> {
        let stream = TcpStream::connect(to)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Tcp(stream))
    }

    /// Sends a message as one record.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let head = (message.len() as u32 | 1 << 31).to_be_bytes();
        self.0.write_all(&[&head, message].concat())
    }

    /// Takes a record.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        let mut reply = Vec::new();
        loop {
            let mut head = [0; 4];
            self.0.read_exact(&mut head).ok()?;
            let head = u32::from_be_bytes(head);
            let at = reply.len();
            reply.resize(at + (head & 0x7fff_ffff) as usize, 0);
            self.0.read_exact(&mut reply[at..]).ok()?;
            if head >> 31 == 1 {
                return Some(reply);
            }
        }
    }
}

impl Transport for Tcp {
    fn exchange(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        self.send(message).ok()?;
        self.receive()
    }
}

/// Puts arguments together.
#[derive(Clone, Default)]
pub struct Args(pub Vec<u8>);

impl Args {
    /// None so far.
    pub fn new() -> Args {
        Args::default()
    }
    /// A number.
    pub fn u32(mut self, v: u32) -> Args {
        self.0.extend(v.to_be_bytes());
        self
    }
    /// A long number.
    pub fn u64(mut self, v: u64) -> Args {
        self.0.extend(v.to_be_bytes());
        self
    }
    /// Bytes with their length.
    pub fn bytes(mut self, b: &[u8]) -> Args {
        self.0.extend((b.len() as u32).to_be_bytes());
        self.0.extend(b);
        while self.0.len() % 4 != 0 {
            self.0.push(0);
        }
        self
    }
    /// Attributes to be set: mode, size, times as (how, seconds).
    pub fn set(self, mode: Option<u32>, size: Option<u64>) -> Args {
        let some = |a: Args, v: Option<u32>| match v {
            Some(v) => a.u32(1).u32(v),
            None => a.u32(0),
        };
        let a = some(self, mode).u32(0).u32(0);
        let a = match size {
            Some(v) => a.u32(1).u64(v),
            None => a.u32(0),
        };
        a.u32(0).u32(0)
    }
}

/// Takes results apart; panics if they are not what they should be.
pub struct Results(pub Vec<u8>, usize);

impl Results {
    /// From the first byte on.
    pub fn new(bytes: Vec<u8>) -> Results {
        Results(bytes, 0)
    }
    /// A number.
    pub fn u32(&mut self) -> u32 {
        self.1 += 4;
        u32::from_be_bytes(self.0[self.1 - 4..self.1].try_into().unwrap())
    }
    /// A long number.
    pub fn u64(&mut self) -> u64 {
        u64::from(self.u32()) << 32 | u64::from(self.u32())
    }
    /// Bytes with their length.
    pub fn bytes(&mut self) -> Vec<u8> {
        let n = self.u32() as usize;
        let b = self.0[self.1..self.1 + n].to_vec();
        self.1 += n.next_multiple_of(4);
        b
    }
    /// Attributes.
    pub fn attr(&mut self) -> Attr {
        let kind = self.u32();
        let mode = self.u32();
        let nlink = self.u32();
        let (uid, gid) = (self.u32(), self.u32());
        let (size, used) = (self.u64(), self.u64());
        let rdev = (self.u32(), self.u32());
        let (fsid, fileid) = (self.u64(), self.u64());
        let mut time = || (self.u32(), self.u32());
        let (atime, mtime, ctime) = (time(), time(), time());
        Attr {
            kind,
            mode,
            nlink,
            uid,
            gid,
            size,
            used,
            rdev,
            fsid,
            fileid,
            atime,
            mtime,
            ctime,
        }
    }
    /// Attributes that may be there.
    pub fn maybe_attr(&mut self) -> Option<Attr> {
        (self.u32() == 1).then(|| self.attr())
    }
    /// Attributes of before, perhaps, and after.
    pub fn wcc(&mut self) -> Option<Attr> {
        if self.u32() == 1 {
            self.1 += 24;
        }
        self.maybe_attr()
    }
    /// There is nothing more.
    pub fn end(&self) {
        assert_eq!(self.1, self.0.len(), "all of the results are read");
    }
}

/// Attributes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Attr {
    pub kind: u32,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub used: u64,
    pub rdev: (u32, u32),
    pub fsid: u64,
    pub fileid: u64,
    pub atime: (u32, u32),
    pub mtime: (u32, u32),
    pub ctime: (u32, u32),
}

/// Number of an error, or the results behind it.
pub type Answer<T> = Result<T, u32>;

/// How a call went that was not carried out.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// No reply.
    Nothing,
    /// Accepted, with this state.
    State(u32),
    /// Denied.
    Denied,
}

/// A client.
pub struct Client<T> {
    /// How it reaches the server.
    pub to: T,
    /// Number of the next call.
    pub xid: u32,
    /// User, group and groups; none: AUTH_NONE.
    pub user: Option<(u32, u32, Vec<u32>)>,
}

impl<T: Transport> Client<T> {
    /// As root.
    pub fn new(to: T) -> Client<T> {
        Client {
            to,
            xid: 1,
            user: Some((0, 0, Vec::new())),
        }
    }

    /// A call as it is sent.
    pub fn message(&mut self, program: u32, procedure: u32, args: &Args) -> Vec<u8> {
        self.xid += 1;
        let head = Args::new().u32(self.xid).u32(0).u32(2);
        let head = head.u32(program).u32(3).u32(procedure);
        let head = match &self.user {
            None => head.u32(0).u32(0),
            Some((uid, gid, groups)) => {
                let body = Args::new().u32(7).bytes(b"client").u32(*uid).u32(*gid);
                let body = body.u32(groups.len() as u32);
                let body = groups.iter().fold(body, |b, g| b.u32(*g));
                head.u32(1).bytes(&body.0)
            }
        };
        let mut message = head.u32(0).u32(0);
        message.0.extend(&args.0);
        message.0
    }

    /// What a reply says.
    ///
    /// # Errors
    /// The call was not carried out.
    pub fn results(&self, reply: Option<Vec<u8>>) -> Result<Results, Refused> {
        let mut r = Results::new(reply.ok_or(Refused::Nothing)?);
        assert_eq!((r.u32(), r.u32()), (self.xid, 1));
        if r.u32() != 0 {
            return Err(Refused::Denied);
        }
        r.u32();
        r.bytes();
        match r.u32() {
            0 => Ok(r),
            state => Err(Refused::State(state)),
        }
    }

    /// Makes a call.
    ///
    /// # Errors
    /// It was not carried out.
    pub fn try_call(
        &mut self,
        program: u32,
        procedure: u32,
        args: &Args,
    ) -> Result<Results, Refused> {
        let message = self.message(program, procedure, args);
        let reply = self.to.exchange(&message);
        self.results(reply)
    }

    /// Makes a call that is carried out.
    pub fn call(&mut self, procedure: u32, args: Args) -> Results {
        self.try_call(NFS, procedure, &args).unwrap()
    }

    /// MNT: handle of a root.
    pub fn mount(&mut self, path: &str) -> Answer<Vec<u8>> {
        let args = Args::new().bytes(path.as_bytes());
        let mut r = self.try_call(MOUNT, 1, &args).unwrap();
        match r.u32() {
            0 => Ok(r.bytes()),
            e => Err(e),
        }
    }

    /// EXPORT: paths with their groups.
    pub fn exports(&mut self) -> Vec<(String, Vec<String>)> {
        let mut r = self.try_call(MOUNT, 5, &Args::new()).unwrap();
        let mut out = Vec::new();
        while r.u32() == 1 {
            let path = String::from_utf8(r.bytes()).unwrap();
            let mut groups = Vec::new();
            while r.u32() == 1 {
                groups.push(String::from_utf8(r.bytes()).unwrap());
            }
            out.push((path, groups));
        }
        r.end();
        out
    }

    /// GETATTR
    pub fn getattr(&mut self, h: &[u8]) -> Answer<Attr> {
        let mut r = self.call(1, Args::new().bytes(h));
        match r.u32() {
            0 => {
                let a = r.attr();
                r.end();
                Ok(a)
            }
            e => Err(e),
        }
    }

    /// SETATTR; `guard`: change time that it must have.
    pub fn setattr(
        &mut self,
        h: &[u8],
        mode: Option<u32>,
        size: Option<u64>,
        guard: Option<(u32, u32)>,
    ) -> Answer<Attr> {
        let args = Args::new().bytes(h).set(mode, size);
        let args = match guard {
            Some((s, n)) => args.u32(1).u32(s).u32(n),
            None => args.u32(0),
        };
        let mut r = self.call(2, args);
        let status = r.u32();
        let a = r.wcc();
        r.end();
        match status {
            0 => Ok(a.unwrap()),
            e => Err(e),
        }
    }

    /// LOOKUP
    pub fn lookup(&mut self, dir: &[u8], name: &str) -> Answer<(Vec<u8>, Attr)> {
        let mut r = self.call(3, Args::new().bytes(dir).bytes(name.as_bytes()));
        match r.u32() {
            0 => {
                let (h, a) = (r.bytes(), r.maybe_attr().unwrap());
                r.maybe_attr();
                r.end();
                Ok((h, a))
            }
            e => Err(e),
        }
    }

    /// LOOKUP of one name after the other.
    pub fn walk(&mut self, root: &[u8], path: &str) -> Answer<(Vec<u8>, Attr)> {
        let mut at = (root.to_vec(), self.getattr(root)?);
        for name in path.split('/') {
            at = self.lookup(&at.0, name)?;
        }
        Ok(at)
    }

    /// ACCESS
    pub fn access(&mut self, h: &[u8], wanted: u32) -> Answer<u32> {
        let mut r = self.call(4, Args::new().bytes(h).u32(wanted));
        let status = r.u32();
        r.maybe_attr();
        match status {
            0 => Ok(r.u32()),
            e => Err(e),
        }
    }

    /// READLINK
    pub fn readlink(&mut self, h: &[u8]) -> Answer<Vec<u8>> {
        let mut r = self.call(5, Args::new().bytes(h));
        let status = r.u32();
        r.maybe_attr();
        match status {
            0 => Ok(r.bytes()),
            e => Err(e),
        }
    }

    /// READ: bytes, and whether that is the end.
    pub fn read(&mut self, h: &[u8], offset: u64, count: u32) -> Answer<(Vec<u8>, bool)> {
        let mut r = self.call(6, Args::new().bytes(h).u64(offset).u32(count));
        let status = r.u32();
        r.maybe_attr();
        if status != 0 {
            r.end();
            return Err(status);
        }
        let (n, eof) = (r.u32(), r.u32() == 1);
        let data = r.bytes();
        r.end();
        assert_eq!(n as usize, data.len());
        Ok((data, eof))
    }

    /// All bytes of a file.
    pub fn read_all(&mut self, h: &[u8]) -> Answer<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let (data, eof) = self.read(h, all.len() as u64, 100_000)?;
            all.extend(data);
            if eof {
                return Ok(all);
            }
        }
    }

    /// WRITE: number of bytes, how stable they are, verifier.
    pub fn write(
        &mut self,
        h: &[u8],
        offset: u64,
        data: &[u8],
        stable: u32,
    ) -> Answer<(u32, u32, u64)> {
        let args = Args::new()
            .bytes(h)
            .u64(offset)
            .u32(data.len() as u32)
            .u32(stable)
            .bytes(data);
        let mut r = self.call(7, args);
        let status = r.u32();
        r.wcc();
        if status != 0 {
            r.end();
            return Err(status);
        }
        let out = (r.u32(), r.u32(), r.u64());
        r.end();
        Ok(out)
    }

    fn made(&mut self, procedure: u32, args: Args) -> Answer<(Vec<u8>, Attr)> {
        let mut r = self.call(procedure, args);
        let status = r.u32();
        if status != 0 {
            r.wcc();
            r.end();
            return Err(status);
        }
        assert_eq!(r.u32(), 1);
        let (h, a) = (r.bytes(), r.maybe_attr().unwrap());
        r.wcc();
        r.end();
        Ok((h, a))
    }

    /// CREATE, unchecked or guarded.
    pub fn create(
        &mut self,
        dir: &[u8],
        name: &str,
        mode: u32,
        guarded: bool,
    ) -> Answer<(Vec<u8>, Attr)> {
        let args = Args::new().bytes(dir).bytes(name.as_bytes());
        self.made(8, args.u32(guarded.into()).set(Some(mode), None))
    }

    /// CREATE, exclusive.
    pub fn create_exclusive(
        &mut self,
        dir: &[u8],
        name: &str,
        number: u64,
    ) -> Answer<(Vec<u8>, Attr)> {
        let args = Args::new().bytes(dir).bytes(name.as_bytes());
        self.made(8, args.u32(2).u64(number))
    }

    /// MKDIR
    pub fn mkdir(&mut self, dir: &[u8], name: &str, mode: u32) -> Answer<(Vec<u8>, Attr)> {
        let args = Args::new().bytes(dir).bytes(name.as_bytes());
        self.made(9, args.set(Some(mode), None))
    }

    /// SYMLINK
    pub fn symlink(&mut self, dir: &[u8], name: &str, target: &[u8]) -> Answer<(Vec<u8>, Attr)> {
        let args = Args::new().bytes(dir).bytes(name.as_bytes());
        self.made(10, args.set(None, None).bytes(target))
    }

    /// MKNOD: type 3 or 4 with a device number, 6 or 7 without.
    pub fn mknod(
        &mut self,
        dir: &[u8],
        name: &str,
        kind: u32,
        rdev: (u32, u32),
    ) -> Answer<(Vec<u8>, Attr)> {
        let args = Args::new().bytes(dir).bytes(name.as_bytes());
        let args = args.u32(kind).set(Some(0o600), None);
        let args = match kind {
            3 | 4 => args.u32(rdev.0).u32(rdev.1),
            _ => args,
        };
        self.made(11, args)
    }

    fn changed(&mut self, procedure: u32, args: Args) -> Answer<()> {
        let mut r = self.call(procedure, args);
        let status = r.u32();
        match status {
            0 => Ok(()),
            e => Err(e),
        }
    }

    /// REMOVE
    pub fn remove(&mut self, dir: &[u8], name: &str) -> Answer<()> {
        self.changed(12, Args::new().bytes(dir).bytes(name.as_bytes()))
    }

    /// RMDIR
    pub fn rmdir(&mut self, dir: &[u8], name: &str) -> Answer<()> {
        self.changed(13, Args::new().bytes(dir).bytes(name.as_bytes()))
    }

    /// RENAME
    pub fn rename(&mut self, from: (&[u8], &str), to: (&[u8], &str)) -> Answer<()> {
        let args = Args::new().bytes(from.0).bytes(from.1.as_bytes());
        self.changed(14, args.bytes(to.0).bytes(to.1.as_bytes()))
    }

    /// LINK
    pub fn link(&mut self, h: &[u8], dir: &[u8], name: &str) -> Answer<()> {
        let args = Args::new().bytes(h).bytes(dir).bytes(name.as_bytes());
        self.changed(15, args)
    }

    /// READDIR, all of it, so many bytes at a time: names with file ids and cookies.
    pub fn readdir(&mut self, dir: &[u8], most: u32) -> Answer<Vec<(String, u64, u64)>> {
        let (mut all, mut cookie, mut verifier) = (Vec::new(), 0, 0);
        loop {
            let args = Args::new().bytes(dir).u64(cookie).u64(verifier).u32(most);
            let mut r = self.call(16, args);
            let status = r.u32();
            r.maybe_attr();
            if status != 0 {
                return Err(status);
            }
            verifier = r.u64();
            while r.u32() == 1 {
                let id = r.u64();
                let name = String::from_utf8_lossy(&r.bytes()).into_owned();
                cookie = r.u64();
                all.push((name, id, cookie));
            }
            let eof = r.u32() == 1;
            r.end();
            assert!(r.0.len() <= most as usize + 24);
            if eof {
                return Ok(all);
            }
        }
    }

    /// READDIRPLUS, all of it: names with attributes and handles.
    #[allow(clippy::type_complexity)]
    pub fn readdirplus(
        &mut self,
        dir: &[u8],
        most: u32,
    ) -> Answer<Vec<(String, Option<Attr>, Option<Vec<u8>>)>> {
        let (mut all, mut cookie, mut verifier) = (Vec::new(), 0, 0);
        loop {
            let args = Args::new().bytes(dir).u64(cookie).u64(verifier);
            let mut r = self.call(17, args.u32(most).u32(most));
            let status = r.u32();
            r.maybe_attr();
            if status != 0 {
                return Err(status);
            }
            verifier = r.u64();
            while r.u32() == 1 {
                r.u64();
                let name = String::from_utf8_lossy(&r.bytes()).into_owned();
                cookie = r.u64();
                let a = r.maybe_attr();
                let h = (r.u32() == 1).then(|| r.bytes());
                all.push((name, a, h));
            }
            let eof = r.u32() == 1;
            r.end();
            if eof {
                return Ok(all);
            }
        }
    }

    /// COMMIT: the verifier.
    pub fn commit(&mut self, h: &[u8]) -> Answer<u64> {
        let mut r = self.call(21, Args::new().bytes(h).u64(0).u32(0));
        let status = r.u32();
        r.wcc();
        match status {
            0 => Ok(r.u64()),
            e => Err(e),
        }
    }
}
