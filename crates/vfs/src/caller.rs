//! Who makes a request, and whether he still waits for the answer.

use zpl::Cred;

/// The caller of an operation, as its door knows him. Nothing is asked that an operation does not need.
pub trait Caller {
    /// User id.
    fn uid(&self) -> u32;

    /// Group id.
    fn gid(&self) -> u32;

    /// Process or thread; 0: not known.
    fn process(&self) -> u32;

    /// His credentials.
    fn cred(&self) -> Cred;

    /// Whether he does not wait for the answer any more. It is asked while the operation waits, before it has changed anything.
    fn is_gone(&self) -> bool;

    /// The calling thread is about to wait for others: the door has somebody else serve requests meanwhile.
    fn about_to_wait(&self) -> Box<dyn Waiting>;
}

/// A thread that waits; until it is dropped.
pub trait Waiting {
    /// Whether service has ended: nobody can be answered any more.
    fn is_over(&self) -> bool;
}

impl Waiting for () {
    fn is_over(&self) -> bool {
        false
    }
}

/// The room's own work, and callers that never wait: they are gone as soon as they would have to.
pub struct Nobody;

impl Caller for Nobody {
    fn uid(&self) -> u32 {
        0
    }

    fn gid(&self) -> u32 {
        0
    }

    fn process(&self) -> u32 {
        0
    }

    fn cred(&self) -> Cred {
        Cred::root()
    }

    fn is_gone(&self) -> bool {
        true
    }

    fn about_to_wait(&self) -> Box<dyn Waiting> {
        Box::new(())
    }
}
