//! A span: the record of a call.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use super::{
    Tracer,
    headers::{SpanId, TraceId},
    sampling,
};
use text::{cut, cut_owned};

#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Span {
    pub(super) place: Place,
    pub(super) name: &'static str,
    /// A part of a call, below the span of the call.
    pub(super) is_internal: bool,
    /// Since 1970.
    pub(super) begun: Duration,
    pub(super) took: Duration,
    pub(super) attributes: Vec<(&'static str, Value)>,
    pub(super) error: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Place {
    pub(super) trace: TraceId,
    pub(super) span: SpanId,
    pub(super) parent: Option<SpanId>,
    pub(super) parent_is_remote: bool,
    /// `tracestate`, unchanged.
    pub(super) state: String,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    Text(Cow<'static, str>),
    Number(i64),
    Texts(Vec<Cow<'static, str>>),
    Numbers(Vec<i64>),
}

impl Value {
    fn cut(self) -> Self {
        let cut_text = |text| match text {
            Cow::Borrowed(text) => Cow::Borrowed(cut(text)),
            Cow::Owned(text) => Cow::Owned(cut_owned(text)),
        };
        match self {
            Self::Text(text) => Self::Text(cut_text(text)),
            Self::Texts(texts) => Self::Texts(texts.into_iter().map(cut_text).collect()),
            numbers => numbers,
        }
    }
}

impl Place {
    pub(super) fn root(trace: TraceId) -> Self {
        let span = sampling::span_id();
        Self { trace, span, parent: None, parent_is_remote: false, state: String::new() }
    }

    pub(super) fn below(trace: TraceId, parent: SpanId, state: String) -> Self {
        Self { parent: Some(parent), parent_is_remote: true, state, ..Self::root(trace) }
    }

    fn child(&self) -> Self {
        let parent = Some(self.span);
        Self { parent, state: self.state.clone(), ..Self::root(self.trace) }
    }
}

/// The span of a call in progress. It ends when it is dropped, with an error unless it was [answered](Self::answered)
/// before.
pub struct OpenSpan {
    tracer: Arc<Tracer>,
    span: Span,
    begun: Instant,
    is_answered: bool,
}

impl OpenSpan {
    pub(super) fn new(tracer: Arc<Tracer>, place: Place, name: &'static str) -> Self {
        // A clock before 1970 reads as 1970: a wrong date is better than no span.
        let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let span = Span { place, name, begun, ..Span::default() };
        Self { tracer, span, begun: Instant::now(), is_answered: false }
    }

    pub fn shows_values(&self) -> bool {
        self.tracer.descriptor_values
    }

    /// Adds an attribute. Texts are cut, because spans wait in memory.
    pub fn add(&mut self, key: &'static str, value: Value) {
        self.span.attributes.push((key, value.cut()));
    }

    pub fn fail(&mut self, why: &str) {
        self.span.error = Some(cut(why).to_owned());
    }

    /// Adds a child span from `begun` to `ended`, with its error, if any.
    pub fn add_child(
        &self,
        name: &'static str,
        [begun, ended]: [Instant; 2],
        attributes: Vec<(&'static str, Value)>,
        error: Option<&str>,
    ) {
        self.tracer.take(Span {
            place: self.span.place.child(),
            name,
            is_internal: true,
            begun: self.span.begun.saturating_add(begun.saturating_duration_since(self.begun)),
            took: ended.saturating_duration_since(begun),
            attributes,
            error: error.map(|error| cut(error).to_owned()),
        });
    }

    pub fn answered(mut self: Box<Self>) {
        self.is_answered = true;
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        if !self.is_answered {
            self.fail("the caller cancelled the call");
        }
        self.span.took = self.begun.elapsed();
        self.tracer.take(std::mem::take(&mut self.span));
    }
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}
