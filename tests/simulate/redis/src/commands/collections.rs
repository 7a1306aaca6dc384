//! Commands on hashes, lists and sets.

use std::collections::VecDeque;

use indexmap::IndexSet;

use super::{Call, Outcome, WRONG_TYPE, integer, range};
use crate::{
    keyspace::{Entry, Hash, Value},
    resp::Reply,
};

type List = VecDeque<Vec<u8>>;
type Set = IndexSet<Box<[u8]>>;

impl Call<'_> {
    fn list(&mut self, key: &[u8]) -> Result<Option<&mut List>, String> {
        match self.entry(key).map(|entry| &mut entry.value) {
            None => Ok(None),
            Some(Value::List(list)) => Ok(Some(list)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    fn elements(&mut self, key: &[u8]) -> Result<Option<&mut Set>, String> {
        match self.entry(key).map(|entry| &mut entry.value) {
            None => Ok(None),
            Some(Value::Set(set)) => Ok(Some(set)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    /// The value of a key, which is created empty if it does not exist.
    fn or_empty(&mut self, key: &[u8], empty: impl FnOnce() -> Value) -> &mut Value {
        if self.entry(key).is_none() {
            self.keys.set(key, Entry::new(empty()));
        }
        &mut self.entry(key).expect("it was just created").value
    }
}

pub(super) fn hget(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let value = call.hash(arguments[0])?.and_then(|hash| hash.get(arguments[1]));
    Ok(value.map_or(Reply::Nil, |value| Reply::text(value)))
}

pub(super) fn hexists(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let exists = call.hash(arguments[0])?.is_some_and(|hash| hash.contains_key(arguments[1]));
    Ok(Reply::Integer(exists.into()))
}

pub(super) fn hlen(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    Ok(Reply::count(call.hash(arguments[0])?.map_or(0, |hash| hash.len())))
}

pub(super) fn hvals(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let hash = call.hash(arguments[0])?;
    let values = hash.into_iter().flat_map(|hash| hash.values());
    Ok(Reply::Array(values.map(|value| Reply::text(value)).collect()))
}

pub(super) fn hkeys(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let hash = call.hash(arguments[0])?;
    let fields = hash.into_iter().flat_map(|hash| hash.keys());
    Ok(Reply::Array(fields.map(|field| Reply::text(field)).collect()))
}

pub(super) fn hmget(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let hash = call.hash(arguments[0])?;
    let value = |field: &&[u8]| hash.as_ref()?.get(*field);
    let values =
        arguments[1..].iter().map(|field| value(field).map_or(Reply::Nil, |value| Reply::text(value)));
    Ok(Reply::Array(values.collect()))
}

pub(super) fn hgetall(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    Ok(Reply::Array(call.hash(arguments[0])?.map_or(Vec::new(), |hash| pairs(hash).collect())))
}

/// Returns all fields at once, as Redis does for small hashes.
pub(super) fn hscan(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    if crate::resp::integer(arguments[1]).is_none_or(|cursor| cursor < 0) {
        return Err("ERR invalid cursor".to_owned());
    }
    match &arguments[2..] {
        [] => {}
        [option, count] if option.eq_ignore_ascii_case(b"COUNT") && integer(count)? > 0 => {}
        _ => return Err(super::SYNTAX.to_owned()),
    }
    let fields = call.hash(arguments[0])?.map_or(Vec::new(), |hash| pairs(hash).collect());
    Ok(Reply::Array(vec![Reply::text(b"0"), Reply::Array(fields)]))
}

fn pairs(hash: &Hash) -> impl Iterator<Item = Reply> {
    hash.iter().flat_map(|(field, value)| [Reply::text(field), Reply::text(value)])
}

pub(super) fn hset(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let (pairs, rest) = arguments[1..].as_chunks::<2>();
    if !rest.is_empty() {
        return Err("ERR wrong number of arguments for 'hset' command".to_owned());
    }
    let Value::Hash(hash) = call.or_empty(arguments[0], || Value::Hash(Hash::new())) else {
        return Err(WRONG_TYPE.to_owned());
    };
    let mut new = 0;
    for [field, value] in pairs {
        new += i64::from(hash.insert((*field).into(), value.to_vec()).is_none());
    }
    Ok(Reply::Integer(new))
}

pub(super) fn hsetnx(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let Value::Hash(hash) = call.or_empty(arguments[0], || Value::Hash(Hash::new())) else {
        return Err(WRONG_TYPE.to_owned());
    };
    let is_new = !hash.contains_key(arguments[1]);
    if is_new {
        hash.insert(arguments[1].into(), arguments[2].to_vec());
    }
    Ok(Reply::Integer(is_new.into()))
}

pub(super) fn hincrby(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let by = integer(arguments[2])?;
    let before = match call.hash(arguments[0])?.and_then(|hash| hash.get(arguments[1])) {
        None => 0,
        Some(value) => crate::resp::integer(value).ok_or("ERR hash value is not an integer")?,
    };
    let after = before.checked_add(by).ok_or("ERR increment or decrement would overflow")?;
    let Value::Hash(hash) = call.or_empty(arguments[0], || Value::Hash(Hash::new())) else {
        unreachable!("the key was read as a hash");
    };
    hash.insert(arguments[1].into(), itoa::Buffer::new().format(after).as_bytes().to_vec());
    Ok(Reply::Integer(after))
}

pub(super) fn hdel(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let Some(hash) = call.hash(arguments[0])? else { return Ok(Reply::Integer(0)) };
    let removed = arguments[1..].iter().filter(|field| hash.shift_remove(**field).is_some()).count();
    let is_empty = hash.is_empty();
    call.remove_if(is_empty, arguments[0]);
    Ok(Reply::count(removed))
}

pub(super) fn rpush(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    push(call, arguments, List::push_back)
}

pub(super) fn lpush(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    push(call, arguments, List::push_front)
}

fn push(call: &mut Call<'_>, arguments: &[&[u8]], add: fn(&mut List, Vec<u8>)) -> Outcome {
    let Value::List(list) = call.or_empty(arguments[0], || Value::List(List::new())) else {
        return Err(WRONG_TYPE.to_owned());
    };
    arguments[1..].iter().for_each(|element| add(list, element.to_vec()));
    Ok(Reply::count(list.len()))
}

pub(super) fn llen(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    Ok(Reply::count(call.list(arguments[0])?.map_or(0, |list| list.len())))
}

pub(super) fn lindex(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let Some(list) = call.list(arguments[0])? else { return Ok(Reply::Nil) };
    let index = integer(arguments[1])?;
    let length = i64::try_from(list.len()).expect("a number of elements in memory");
    let index = if index < 0 { index.saturating_add(length) } else { index };
    let element = usize::try_from(index).ok().and_then(|index| list.get(index));
    Ok(element.map_or(Reply::Nil, |element| Reply::text(element)))
}

pub(super) fn lrange(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let (first, last) = (integer(arguments[1])?, integer(arguments[2])?);
    let Some(list) = call.list(arguments[0])? else { return Ok(Reply::Array(Vec::new())) };
    let elements = list.range(range(first, last, list.len()));
    Ok(Reply::Array(elements.map(|element| Reply::text(element)).collect()))
}

pub(super) fn ltrim(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let (first, last) = (integer(arguments[1])?, integer(arguments[2])?);
    let Some(list) = call.list(arguments[0])? else { return Ok(Reply::OK) };
    let kept = range(first, last, list.len());
    list.truncate(kept.end);
    list.drain(..kept.start);
    let is_empty = list.is_empty();
    call.remove_if(is_empty, arguments[0]);
    Ok(Reply::OK)
}

pub(super) fn sadd(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let Value::Set(set) = call.or_empty(arguments[0], || Value::Set(Set::new())) else {
        return Err(WRONG_TYPE.to_owned());
    };
    Ok(Reply::count(arguments[1..].iter().filter(|member| set.insert((**member).into())).count()))
}

pub(super) fn srem(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let Some(set) = call.elements(arguments[0])? else { return Ok(Reply::Integer(0)) };
    let removed = arguments[1..].iter().filter(|member| set.shift_remove(**member)).count();
    let is_empty = set.is_empty();
    call.remove_if(is_empty, arguments[0]);
    Ok(Reply::count(removed))
}

pub(super) fn scard(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    Ok(Reply::count(call.elements(arguments[0])?.map_or(0, |set| set.len())))
}

/// As many members from a place that the time chooses: the caller wants others each time.
pub(super) fn srandmember(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let (most, now) = (usize::try_from(integer(arguments[1])?).map_err(|_| super::SYNTAX)?, call.now);
    let members: Vec<Reply> = call
        .elements(arguments[0])?
        .into_iter()
        .flat_map(|set| set.iter())
        .map(|member| Reply::text(member))
        .collect();
    let from = (now / 7 % members.len().max(1) as u64) as usize;
    let chosen = members.iter().cycle().skip(from).take(most.min(members.len()));
    Ok(Reply::Array(chosen.cloned().collect()))
}

pub(super) fn smembers(call: &mut Call<'_>, arguments: &[&[u8]]) -> Outcome {
    let members = call.elements(arguments[0])?.into_iter().flat_map(|set| set.iter());
    Ok(Reply::Array(members.map(|member| Reply::text(member)).collect()))
}
