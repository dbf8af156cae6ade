//! Names on the command line. The rules for names of pools and datasets are those of the format.

pub use disk::names::{check_dataset, check_new, check_pool, pool_of, Want};

/// Splits `property=value`; none without `=` or name.
pub fn assignment(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once('=')?;
    (!name.is_empty()).then(|| (name.to_string(), value.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assignment_ends_at_the_first_equals_sign() {
        assert_eq!(assignment("a=b=c"), Some(("a".into(), "b=c".into())));
        assert_eq!(assignment("=c"), None);
    }
}
