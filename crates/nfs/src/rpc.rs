//! Remote procedure calls (RFC 5531): who calls which procedure, and the heads of replies.

use crate::xdr::{Decoded, Garbage, Reader, Writer};

/// Version of the protocol.
const VERSION: u32 = 2;
/// Most bytes of credentials.
const MOST_AUTH: usize = 400;
/// Most groups in credentials of AUTH_SYS.
const MOST_GROUPS: usize = 16;
/// Most bytes of a client's name.
const MOST_NAME: usize = 255;

const CALL: u32 = 0;
const REPLY: u32 = 1;
const AUTH_NONE: u32 = 0;
/// Number of AUTH_SYS.
pub const AUTH_SYS: u32 = 1;

/// Who calls, as the client says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Nobody in particular.
    None,
    /// A user of the client's machine.
    Sys {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
        /// Supplementary groups.
        groups: Vec<u32>,
    },
}

/// A call without its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The client's number of the call.
    pub xid: u32,
    /// Number of the program.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Number of the procedure.
    pub procedure: u32,
    /// Who calls.
    pub auth: Auth,
}

/// What the head of a message says.
#[derive(Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A call, with its arguments.
    Call(Call, &'a [u8]),
    /// What is to be answered at once.
    Refused(Vec<u8>),
}

fn auth(r: &mut Reader<'_>) -> Decoded<Option<Auth>> {
    let flavor = r.u32()?;
    let body = r.opaque(MOST_AUTH)?;
    Ok(match flavor {
        AUTH_NONE => Some(Auth::None),
        AUTH_SYS => sys(body).ok(),
        _ => None,
    })
}

fn sys(body: &[u8]) -> Decoded<Auth> {
    let r = &mut Reader::new(body);
    r.u32()?;
    r.opaque(MOST_NAME)?;
    let (uid, gid) = (r.u32()?, r.u32()?);
    let n = r.u32()? as usize;
    if n > MOST_GROUPS {
        return Err(Garbage);
    }
    let groups = (0..n).map(|_| r.u32()).collect::<Decoded<_>>()?;
    Ok(Auth::Sys { uid, gid, groups })
}

/// Reads the head of a message.
///
/// # Errors
/// It is no call that can be answered.
pub fn read(message: &[u8]) -> Decoded<Message<'_>> {
    let r = &mut Reader::new(message);
    let xid = r.u32()?;
    if r.u32()? != CALL {
        return Err(Garbage);
    }
    let rpc = r.u32()?;
    let (program, version, procedure) = (r.u32()?, r.u32()?, r.u32()?);
    if rpc != VERSION {
        let mut w = Writer::default();
        // Denied: RPC_MISMATCH.
        w.u32(xid)
            .u32(REPLY)
            .u32(1)
            .u32(0)
            .u32(VERSION)
            .u32(VERSION);
        return Ok(Message::Refused(w.into_bytes()));
    }
    let who = auth(r)?;
    r.u32()?;
    r.opaque(MOST_AUTH)?;
    Ok(match who {
        Some(auth) => Message::Call(
            Call {
                xid,
                program,
                version,
                procedure,
                auth,
            },
            r.rest(),
        ),
        None => Message::Refused(denied(xid)),
    })
}

/// The reply to credentials that are not understood.
fn denied(xid: u32) -> Vec<u8> {
    /// AUTH_BADCRED
    const BAD: u32 = 1;
    let mut w = Writer::default();
    w.u32(xid).u32(REPLY).u32(1).u32(1).u32(BAD);
    w.into_bytes()
}

/// How a call that was accepted went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// Results follow.
    Success = 0,
    /// There is no such program.
    NoProgram = 1,
    /// The program has other versions only, which follow.
    OtherVersion = 2,
    /// There is no such procedure.
    NoProcedure = 3,
    /// The arguments are none.
    Garbage = 4,
}

/// The head of a reply; results follow.
pub fn accepted(xid: u32, how: Accepted) -> Writer {
    let mut w = Writer::default();
    w.u32(xid)
        .u32(REPLY)
        .u32(0)
        .u32(AUTH_NONE)
        .u32(0)
        .u32(how as u32);
    w
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(rpc: u32, flavor: u32, cred: &[u8]) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(9).u32(0).u32(rpc).u32(100_003).u32(3).u32(1);
        w.u32(flavor).opaque(cred).u32(0).u32(0).u32(77);
        w.into_bytes()
    }

    fn user(groups: &[u32]) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(1)
            .opaque(b"host")
            .u32(5)
            .u32(6)
            .u32(groups.len() as u32);
        for g in groups {
            w.u32(*g);
        }
        w.into_bytes()
    }

    #[test]
    fn calls_with_users() {
        let bytes = call(2, AUTH_SYS, &user(&[7, 8]));
        let Ok(Message::Call(c, rest)) = read(&bytes) else {
            panic!("no call");
        };
        assert_eq!(
            (c.xid, c.program, c.version, c.procedure),
            (9, 100_003, 3, 1)
        );
        let groups = vec![7, 8];
        assert_eq!(
            c.auth,
            Auth::Sys {
                uid: 5,
                gid: 6,
                groups
            }
        );
        assert_eq!(rest, [0, 0, 0, 77]);
        let bytes = call(2, 0, &[]);
        assert!(matches!(read(&bytes), Ok(Message::Call(c, _)) if c.auth == Auth::None));
    }

    #[test]
    fn what_cannot_be_answered_or_is_refused() {
        assert_eq!(read(&[0; 8]), Err(Garbage));
        // A reply.
        assert_eq!(read(&[0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]), Err(Garbage));
        assert!(matches!(read(&call(3, 0, &[])), Ok(Message::Refused(_))));
        assert!(matches!(read(&call(2, 6, &[])), Ok(Message::Refused(_))));
        let many: Vec<u32> = (0..17).collect();
        assert!(matches!(
            read(&call(2, 1, &user(&many))),
            Ok(Message::Refused(_))
        ));
        assert_eq!(read(&call(2, 1, &[0; 404])), Err(Garbage));
    }
}
