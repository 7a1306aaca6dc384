//! Commands on sorted sets. Ranges are by index or by score, not by text.

use super::{Call, Outcome, SYNTAX, WRONG_TYPE, integer, range};
use crate::{
    keyspace::{Entry, Value},
    resp::Reply,
    sorted_set::{Score, Scores, SortedSet},
};

const NOT_A_NUMBER: &str = "ERR resulting score is not a number (NaN)";

impl Call<'_> {
    fn sorted(&mut self, key: &[u8]) -> Result<Option<&mut SortedSet>, String> {
        match self.entry(key).map(|entry| &mut entry.value) {
            None => Ok(None),
            Some(Value::Sorted(set)) => Ok(Some(set)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    /// Removes the members that a function chooses, and the key with the last one. Returns them.
    fn take(
        &mut self,
        key: &[u8],
        choose: impl FnOnce(&SortedSet) -> Vec<(&[u8], Score)>,
    ) -> Result<Vec<(Vec<u8>, Score)>, String> {
        let Some(set) = self.sorted(key)? else { return Ok(Vec::new()) };
        let chosen: Vec<_> =
            choose(set).into_iter().map(|(member, score)| (member.to_vec(), score)).collect();
        for (member, _) in &chosen {
            set.remove(member);
        }
        let is_empty = set.len() == 0;
        self.remove_if(is_empty, key);
        Ok(chosen)
    }
}

fn number(text: &[u8]) -> Result<Score, String> {
    Score::parse(text).ok_or_else(|| "ERR value is not a valid float".to_owned())
}

fn scores(least: &[u8], most: &[u8]) -> Result<Scores, String> {
    Scores::parse(least, most).ok_or_else(|| "ERR min or max is not a float".to_owned())
}

fn shown(score: Score) -> Reply {
    Reply::Bulk(score.text())
}

#[derive(Default)]
struct Options {
    only_new: bool,
    only_known: bool,
    only_greater: bool,
    only_less: bool,
    counts_changed: bool,
    adds: bool,
}

impl Options {
    /// Reads the options before the first score, and returns the rest.
    fn read<'a, 'b>(mut words: &'a [&'b [u8]]) -> Result<(Self, &'a [&'b [u8]]), String> {
        let mut options = Self::default();
        while let [first, rest @ ..] = words {
            let option = match first.to_ascii_uppercase().as_slice() {
                b"NX" => &mut options.only_new,
                b"XX" => &mut options.only_known,
                b"GT" => &mut options.only_greater,
                b"LT" => &mut options.only_less,
                b"CH" => &mut options.counts_changed,
                b"INCR" => &mut options.adds,
                _ => break,
            };
            *option = true;
            words = rest;
        }
        if words.is_empty() || words.len() % 2 == 1 {
            return Err(SYNTAX.to_owned());
        }
        let Self { only_new, only_known, only_greater, only_less, adds, .. } = options;
        if only_new && only_known {
            return Err("ERR XX and NX options at the same time are not compatible".to_owned());
        }
        if [only_greater, only_less, only_new].into_iter().filter(|option| *option).count() > 1 {
            return Err("ERR GT, LT, and/or NX options at the same time are not compatible".to_owned());
        }
        if adds && words.len() > 2 {
            return Err("ERR INCR option supports a single increment-element pair".to_owned());
        }
        Ok((options, words))
    }

    /// The score that a member gets; `None` if it stays as it is.
    fn apply(&self, before: Option<Score>, number: Score) -> Result<Option<Score>, String> {
        let Some(before) = before else { return Ok(Some(number).filter(|_| !self.only_known)) };
        if self.only_new {
            return Ok(None);
        }
        let after = if self.adds { before.plus(number).ok_or(NOT_A_NUMBER)? } else { number };
        let stays = self.only_greater && after <= before || self.only_less && after >= before;
        Ok(Some(after).filter(|_| !stays))
    }
}

pub(super) fn zadd(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let (options, pairs) = Options::read(&arguments[1..])?;
    add(call, arguments[0], &options, pairs)
}

pub(super) fn zincrby(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    add(call, arguments[0], &Options { adds: true, ..Options::default() }, &arguments[1..])
}

fn add(call: &mut Call<'_>, key: &[u8], options: &Options, words: &[&[u8]]) -> Outcome {
    let (pairs, _) = words.as_chunks::<2>();
    let pairs: Vec<_> =
        pairs.iter().map(|[score, member]| Ok((number(score)?, *member))).collect::<Result<_, String>>()?;
    if call.sorted(key)?.is_none() {
        if options.only_known {
            return Ok(if options.adds { Reply::Nil } else { Reply::Integer(0) });
        }
        call.keys.set(key, Entry::new(Value::Sorted(SortedSet::default())));
    }
    let set = call.sorted(key)?.expect("it exists, or was just created");
    let (mut new, mut changed, mut last) = (0, 0, None);
    for (number, member) in pairs {
        let before = set.score(member);
        last = options.apply(before, number)?;
        if let Some(after) = last {
            if before != last {
                set.set(member, after);
            }
            new += i64::from(before.is_none());
            changed += i64::from(before.is_some_and(|before| before != after));
        }
    }
    Ok(match options {
        Options { adds: true, .. } => last.map_or(Reply::Nil, shown),
        Options { counts_changed: true, .. } => Reply::Integer(new + changed),
        _ => Reply::Integer(new),
    })
}

pub(super) fn zscore(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let score = call.sorted(arguments[0])?.and_then(|set| set.score(arguments[1]));
    Ok(score.map_or(Reply::Nil, shown))
}

pub(super) fn zmscore(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let set = call.sorted(arguments[0])?;
    let score = |member: &&[u8]| set.as_ref()?.score(member);
    Ok(Reply::Array(arguments[1..].iter().map(|member| score(member).map_or(Reply::Nil, shown)).collect()))
}

pub(super) fn zcard(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    Ok(Reply::count(call.sorted(arguments[0])?.map_or(0, |set| set.len())))
}

pub(super) fn zcount(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let scores = scores(arguments[1], arguments[2])?;
    Ok(Reply::count(call.sorted(arguments[0])?.map_or(0, |set| set.within(&scores).count())))
}

pub(super) fn zrem(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let taken = call.take(arguments[0], |set| {
        set.iter().filter(|(member, _)| arguments[1..].contains(member)).collect()
    })?;
    Ok(Reply::count(taken.len()))
}

pub(super) fn zremrangebyscore(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let scores = scores(arguments[1], arguments[2])?;
    Ok(Reply::count(call.take(arguments[0], |set| set.within(&scores).collect())?.len()))
}

pub(super) fn zremrangebyrank(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let (first, last) = (integer(arguments[1])?, integer(arguments[2])?);
    let taken = call.take(arguments[0], |set| {
        let range = range(first, last, set.len());
        set.iter().skip(range.start).take(range.len()).collect()
    })?;
    Ok(Reply::count(taken.len()))
}

pub(super) fn zpopmin(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    pop(call, arguments, "zpopmin")
}

pub(super) fn zpopmax(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    pop(call, arguments, "zpopmax")
}

fn pop(call: &mut Call<'_>, arguments: &[&[u8]], name: &str) -> Outcome {
    let most = match arguments[1..] {
        [] => 1,
        [most] => integer(most)
            .ok()
            .and_then(|most| usize::try_from(most).ok())
            .ok_or("ERR value is out of range, must be positive")?,
        _ => return Err(format!("ERR wrong number of arguments for '{name}' command")),
    };
    let taken = call.take(arguments[0], |set| match name {
        "zpopmin" => set.iter().take(most).collect(),
        _ => set.iter().rev().take(most).collect(),
    })?;
    Ok(Reply::Array(taken.iter().flat_map(|(member, score)| [Reply::text(member), shown(*score)]).collect()))
}

#[derive(Default)]
struct Listing {
    by_score: bool,
    reversed: bool,
    limit: Option<(i64, i64)>,
    with_scores: bool,
}

impl Listing {
    fn read(mut self, mut words: &[&[u8]], is_general: bool) -> Result<Self, String> {
        while let [first, rest @ ..] = words {
            match (first.to_ascii_uppercase().as_slice(), rest) {
                (b"WITHSCORES", _) => self.with_scores = true,
                (b"BYSCORE", _) if is_general => self.by_score = true,
                (b"REV", _) if is_general => self.reversed = true,
                (b"LIMIT", [offset, count, ..]) => self.limit = Some((integer(offset)?, integer(count)?)),
                _ => return Err(SYNTAX.to_owned()),
            }
            let read = if first.eq_ignore_ascii_case(b"LIMIT") { 2 } else { 0 };
            words = &rest[read..];
        }
        if self.limit.is_some() && !self.by_score {
            let error =
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX";
            return Err(error.to_owned());
        }
        Ok(self)
    }

    fn of(&self, members: impl Iterator<Item = (Vec<u8>, Score)>) -> Reply {
        let (offset, count) = self.limit.unwrap_or((0, -1));
        // As Redis: a negative offset skips everything, and a negative count takes it.
        let [offset, count] = [offset, count].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        let score = |score: Score| self.with_scores.then(|| shown(score));
        let all = members.skip(offset).take(count);
        Reply::Array(
            all.flat_map(|(member, own)| [Some(Reply::Bulk(member)), score(own)]).flatten().collect(),
        )
    }
}

pub(super) fn zrange(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    list(call, arguments, &Listing::default().read(&arguments[3..], true)?)
}

pub(super) fn zrangebyscore(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let listing = Listing { by_score: true, ..Listing::default() };
    list(call, arguments, &listing.read(&arguments[3..], false)?)
}

fn list(call: &mut Call<'_>, arguments: &[&[u8]], listing: &Listing) -> Outcome {
    let (first, last) = (arguments[1], arguments[2]);
    let owned = |(member, score): (&[u8], Score)| (member.to_vec(), score);
    let empty = SortedSet::default();
    if listing.by_score {
        let scores = if listing.reversed { scores(last, first)? } else { scores(first, last)? };
        let set = call.sorted(arguments[0])?.map_or(&empty, |set| &*set);
        let members = set.within(&scores).map(owned);
        return Ok(if listing.reversed { listing.of(members.rev()) } else { listing.of(members) });
    }
    let (first, last) = (integer(first)?, integer(last)?);
    let set = call.sorted(arguments[0])?.map_or(&empty, |set| &*set);
    let range = range(first, last, set.len());
    let within = |members: &mut dyn Iterator<Item = (Vec<u8>, Score)>| {
        listing.of(members.skip(range.start).take(range.len()))
    };
    let mut members = set.iter().map(owned);
    Ok(if listing.reversed { within(&mut members.rev()) } else { within(&mut members) })
}
