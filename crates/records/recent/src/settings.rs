//! What is recorded of callers' values, and which decisions are logged.

text::named! {
    #[derive(Default)]
    pub enum KeyValues {
        #[default]
        Plain = "plain",
        /// The first 16 digits of their SHA-256, so that equal values are recognised.
        Hashed = "hashed",
        Hidden = "hidden",
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Logged {
    Refused,
    /// A sample with this probability: above 0, at most 1.
    Sampled(f64),
}
