-- Sliding logs. A log is a text: a head of 17 bytes (how many hits have left it, the places of the oldest
-- entry and behind the newest, the second until which the key lives at least) and entries of 11 (the
-- microsecond, and how many hits there were up to it, in 32 bits that overflow). A short log is read and
-- written whole; of a long one only the head and the ends are, and what is sought in it is found by halving.
local HEAD, ENTRY, SHORT, OVERFLOW = 17, 11, 2048, 4294967296
local floor, max = math.floor, math.max
local present = second * 1000000 + micros

-- The log under a key, or `false` where there is something else.
local function open(key)
  local text = redis.pcall('GETRANGE', key, 0, SHORT - 1)
  local bytes = type(text) == 'string' and #text
  if bytes == SHORT then
    bytes = call('STRLEN', key)
  end
  if bytes == 0 then
    return { key = key, text = text, bytes = 0, gone = 0, first = 0, last = 0, lives = 0, written = 0 }
  elseif not bytes or bytes < HEAD then
    return false
  end
  local gone, first, last, lives = unpacked('<I4I4I4I5', text)
  return first < last and HEAD + last * ENTRY <= bytes and {
    key = key, text = text, bytes = bytes, gone = gone, first = first, last = last, lives = lives,
    -- The entries from this place on are not written yet. They are the newest, and stand in the table.
    written = last,
  }
end

-- When the hits of an entry were taken, and how many there are up to it.
local function entry(log, place)
  local bytes, at = log[place], 1
  if place < log.written then
    local from = HEAD + place * ENTRY
    if from + ENTRY <= #log.text then
      bytes, at = log.text, from + 1
    else
      bytes = call('GETRANGE', log.key, from, from + ENTRY - 1)
    end
  end
  local moment, sum = unpacked('<I7I4', bytes, at)
  return moment, (sum - log.gone) % OVERFLOW
end

-- The first of these places whose moment (1) or sum (2) is as large as that, or the one behind them.
local function find(log, from, to, field, least)
  while from < to do
    local middle = floor((from + to) / 2)
    if select(field, entry(log, middle)) < least then
      from = middle + 1
    else
      to = middle
    end
  end
  return from
end

-- When the newest hits were taken, and how many there are.
local function newest(log)
  if log.first == log.last then
    return 0, 0
  end
  return entry(log, log.last - 1)
end

local function cut(log, last)
  log.last, log.written, log.changed = last, math.min(log.written, last), true
end

-- Notes that there are so many hits up to this moment.
local function note(log, moment, sum)
  if newest(log) == moment then
    cut(log, log.last - 1)
  end
  log[log.last] = pack('<I7I4', moment, (log.gone + sum) % OVERFLOW)
  log.last, log.changed = log.last + 1, true
end

-- Forgets what has left the window. What lies ahead was taken before the clock was set back, and is as if it
-- were of now.
local function forget(log, past)
  local moment, total = newest(log)
  if moment > present + 1000000 then
    cut(log, find(log, log.first, log.last, 1, present + 1))
    note(log, present, total)
  end
  local first, last, step = log.first, log.last, 1
  while first + step <= last and entry(log, first + step - 1) <= past do
    step = step * 2
  end
  first = find(log, first + floor(step / 2), math.min(first + step - 1, last), 1, past + 1)
  if first > log.first then
    local _, sum = entry(log, first - 1)
    log.gone, log.first, log.changed = (log.gone + sum) % OVERFLOW, first, true
  end
end

-- Takes hits off the newest entries.
local function give_back(log, hits)
  local _, total = newest(log)
  local left = max(total - hits, 0)
  local place = left > 0 and find(log, log.first, log.last, 2, left) or log.first
  if place < log.last then
    local moment = entry(log, place)
    cut(log, place)
    if left > 0 then
      note(log, moment, left)
    end
  end
end

-- Takes so many hits as often as they fit, and returns how often, and when the last of those in the way of
-- one more was taken.
local function take(log, hits, times, limit)
  local moment, total = newest(log)
  local fit = max(floor((limit - total) / hits), 0)
  if fit > 0 then
    total = total + math.min(fit, times) * hits
    note(log, max(moment, present), total)
  end
  if fit >= times or hits > limit then
    return fit, 0
  end
  return fit, (entry(log, find(log, log.first, log.last, 2, total + hits - limit)))
end

-- Writes what has changed, or the whole log, when it is short or most of it is of no use any more.
local function write(log, length, slack)
  local key, first, last, written = log.key, log.first, log.last, log.written
  if first == last then
    return call('DEL', key)
  end
  -- To the next whole second, and as long as time may stand still.
  local seconds, lives = floor(newest(log) / 1000000) + length + 2 - second, log.lives
  local is_kept = second + seconds <= lives
  if not is_kept then
    seconds = seconds + slack
    lives = second + seconds
  end
  local fresh = table.concat(log, '', written, last - 1)
  local is_short = HEAD + (last - first) * ENTRY <= SHORT
  if not is_short and first <= last - first then
    call('SETRANGE', key, HEAD + written * ENTRY, fresh)
    call('SETRANGE', key, 0, pack('<I4I4I4I5', log.gone, first, last, lives))
    return is_kept or call('EXPIRE', key, seconds)
  end
  local from, to = HEAD + first * ENTRY, HEAD + written * ENTRY
  local old = ''
  if to > from then
    old = to <= #log.text and log.text:sub(from + 1, to) or call('GETRANGE', key, from, to - 1)
  end
  local whole = pack('<I4I4I4I5', log.gone, 0, last - first, lives) .. old .. fresh
  if is_kept and log.bytes <= SHORT then
    return call('SETRANGE', key, 0, whole)
  end
  return call('SETEX', key, string.format('%d', seconds), whole)
end

-- Tells of a key's log how many hits there were and, for each run, when the newest was taken afterwards, and
-- the last of those in the way, 0 where there is none; and whether all was admitted. What is under the key
-- and no log is FOREIGN. Nothing is kept on a trial.
local function ask_log(key, asked, is_trial)
  local log = open(key)
  if not log then
    return FOREIGN
  end
  forget(log, present - asked.length * 1000000)
  local _, total = newest(log)
  local told, admitted = { total }, true
  for i = 1, #asked.runs - 1, 2 do
    local hits, times, way = asked.runs[i], asked.runs[i + 1], 0
    if hits < 0 then
      give_back(log, -hits * times)
    elseif hits > 0 then
      local fit
      fit, way = take(log, hits, times, asked.limit)
      admitted = admitted and fit >= times
    end
    told[i + 1], told[i + 2] = (newest(log)), way
  end
  if log.changed and not is_trial then
    write(log, asked.length, asked.slack)
  end
  return told, admitted
end

local function asked_of_log(asked)
  local slack, limit, length, _, at = unpacked('<xI4I8I8I8', asked)
  return { slack = slack, limit = limit, length = length, runs = runs_from(asked, at) }
end
