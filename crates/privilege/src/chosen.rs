//! Who does the acts of this process.

use std::sync::OnceLock;

use crate::acts::Privilege;
use crate::direct::Direct;

static CHOSEN: OnceLock<Box<dyn Privilege>> = OnceLock::new();

/// From now on somebody else does them. False: it is too late, some have been done.
pub fn let_do(by: Box<dyn Privilege>) -> bool {
    CHOSEN.set(by).is_ok()
}

/// Who does them; this process itself, unless somebody else was chosen before.
pub fn acts() -> &'static dyn Privilege {
    &**CHOSEN.get_or_init(|| Box::new(Direct))
}
