//! The message of a caught panic.

/// The message of a panic.
pub fn said(p: Box<dyn std::any::Any + Send>) -> String {
    let text = p
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| p.downcast_ref::<&str>().map(|s| s.to_string()));
    format!("panic: {}", text.unwrap_or_default())
}
