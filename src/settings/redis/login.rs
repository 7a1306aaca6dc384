//! User and password, which a URL and a variable of their own may give in parts.

use super::{Credentials, Secret};

/// What a text gives of a user and a password; what it does not give is empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: Secret,
}

impl Login {
    pub(super) fn new(user: String, password: String) -> Self {
        Self { user, password: Secret(password) }
    }

    /// Of `password` or `user:password`, as `REDIS_AUTH` holds it.
    pub(super) fn of_auth(text: &str) -> Self {
        let (user, password) = text.split_once(':').unwrap_or(("", text));
        Self::new(user.to_owned(), password.to_owned())
    }

    /// True when neither is given.
    pub(super) fn is_empty(&self) -> bool {
        self.user.is_empty() && self.password.0.is_empty()
    }

    /// This, and what it does not give from the other.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            user: if self.user.is_empty() { other.user } else { self.user },
            password: if self.password.0.is_empty() { other.password } else { self.password },
        }
    }

    /// None when neither is given.
    pub(super) fn credentials(self) -> Option<Credentials> {
        let user = (!self.user.is_empty()).then(|| self.user.clone());
        (!self.is_empty()).then_some(Credentials { user, password: self.password })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_goes_before_a_url_in_each_part() {
        let of = |auth: &str, user: &str, password: &str| {
            let login = Login::of_auth(auth).or(Login::new(user.to_owned(), password.to_owned()));
            login.credentials().map(|found| (found.user.unwrap_or_default(), found.password.0))
        };
        let found = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(of("", "", ""), None);
        assert_eq!(of(":", "", ""), None);
        assert_eq!(of("p", "", ""), found("", "p"));
        assert_eq!(of("u:p:q", "v", "r"), found("u", "p:q"));
        assert_eq!(of("p", "v", "r"), found("v", "p"));
        assert_eq!(of("u:", "v", "r"), found("u", "r"));
        assert_eq!(of("", "v", "r"), found("v", "r"));
        assert_eq!(of(":p", "", "r"), found("", "p"));
    }

    #[test]
    fn passwords_are_not_printed() {
        let login = Login::of_auth("user:hunter2");
        assert!(!format!("{login:?}{:?}", login.clone().credentials()).contains("hunter2"));
    }
}
