-- Counts a batch of checks by the algorithms of src/algorithm, whose numbers and names these are.
--
-- KEYS     one for each check, 1 to 4096; a key may come several times, and is then written once.
-- ARGV[1]  the time in microseconds since 1970, or 0 for the server's own.
-- ARGV[2]  for each check five little-endian doubles: what counts, hits, and three terms.
--            1  hits  burst  ticks a second  ticks a hit      a bucket
--            2  hits  limit  seconds of the window  0         a sliding window
--            3  hits  limit  seconds of the window  0         a sliding log
--          Hits below 0 are given back. Those above the limit or the burst never fit, so that nobody sends
--          more than one above; what is given back is at most 4294967296.
--
-- Answers with the time, and then for each check with four numbers: 1 if it was admitted or else 0, and
--            1  ticks that it lacks, 0, 0
--            2  this window's count, the last one's, the second at which this one began
--            3  hits, when the newest was taken, when the last was taken that is in the way; 0 for none
--
-- A number here is a double: whole and exact up to 2^53, which nothing that decides exceeds. A state that
-- is as it was is not written.

local now = tonumber(ARGV[1])
if now == 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local micros = now % 1000000
local second = (now - micros) / 1000000

local LEEWAY = 1000000
local call, floor, ceil, max, min = redis.call, math.floor, math.ceil, math.max, math.min
local pack, read_packed = struct.pack, struct.unpack

-- What is kept in one value: read together, and written together at the end.
local states, lives, changed = {}, {}, {}
for at, state in ipairs(call('MGET', unpack(KEYS))) do
  states[KEYS[at]] = state
end

local function keep(key, state, seconds)
  if not lives[key] then
    changed[#changed + 1] = key
  end
  states[key], lives[key] = state, seconds
end

-- State: the second at which the bucket is full, and ticks behind it.
local function bucket(key, hits, burst, per_second, per_hit)
  local tick = floor(micros * per_second / 1000000)
  local kept, told = states[key], 0
  if kept then
    local full_second, full_tick = read_packed('<dd', kept)
    told = max((full_second - second) * per_second + full_tick - tick, 0)
  end
  local missing = told
  if told > burst * per_hit + per_second then
    missing = burst * per_hit
  end
  local admitted = hits <= 0 or (hits <= burst and missing <= (burst - hits) * per_hit)
  if admitted then
    missing = max(missing + hits * per_hit, 0)
  end
  if missing ~= told then
    local full_at = tick + missing
    local seconds = floor(full_at / per_second)
    keep(key, pack('<dd', second + seconds, full_at - seconds * per_second), seconds + 1)
  end
  return admitted, missing, 0, 0
end

-- State: the second at which the present window began, its count, and the last one's.
local function window(key, hits, limit, length)
  local start = second - second % length
  local kept, began, this, last = states[key], 0, 0, 0
  if kept then
    began, this, last = read_packed('<dI4I4', kept)
  end
  local moved = began > second + 1
  if moved then
    began = start
  end
  if began < start then
    last = began + length >= start and this or 0
    began, this = start, 0
  end
  local elapsed = floor(max((second - began) * 1000000 + micros, 0) / length)
  local room = max(limit - floor(last * max(1000000 - elapsed, 0) / 1000000), 0)
  local admitted = hits <= 0 or this + hits <= room
  local this_before, last_before = this, last
  if hits < 0 then
    this, last = max(this + hits, 0), max(last - max(-hits - this, 0), 0)
  elseif admitted then
    this = this + hits
  end
  if moved or this ~= this_before or last ~= last_before then
    keep(key, pack('<dI4I4', began, this, last), began + 2 * length - second)
  end
  return admitted, this, last, began
end

-- An entry of a log: when, and behind a colon how many, where they are several. Redis keeps what is only a
-- number in nine bytes.
local function entry(at, hits)
  return string.format(hits == 1 and '%.0f' or '%.0f:%.0f', at, hits)
end

local function read(text)
  local at = tonumber(text)
  if at then
    return at, 1
  end
  local colon = string.find(text, ':', 1, true)
  return tonumber(string.sub(text, 1, colon - 1)), tonumber(string.sub(text, colon + 1))
end

-- When the newest of so many of the oldest was taken.
local function newest_of_oldest(key, hits)
  local from, seen = 1, 0
  while true do
    local some = call('LRANGE', key, from, from + 63)
    for _, text in ipairs(some) do
      local at, number = read(text)
      seen = seen + number
      if seen >= hits then
        return at
      end
    end
    if #some == 0 then
      return 0
    end
    from = from + #some
  end
end

-- State: a list of the total and the entries from old to new.
local function log(key, hits, limit, length)
  local span = length * 1000000
  local total = tonumber(call('LINDEX', key, 0) or 0)
  local kept = total
  local function put(at, number)
    call('RPUSH', key, entry(at, number))
  end
  -- What lies too far ahead is as if it were of now.
  local newest = total > 0 and read(call('LINDEX', key, -1)) or 0
  if newest > now + LEEWAY then
    local ahead = 0
    while total > ahead do
      local at, number = read(call('LINDEX', key, -1))
      if at <= now then
        break
      end
      call('RPOP', key)
      ahead = ahead + number
    end
    put(now, ahead)
    newest = now
  end
  -- What has left the window is dropped, behind the total, which stands first.
  if total > 0 and read(call('LINDEX', key, 1)) <= now - span then
    call('LPOP', key)
    while total > 0 do
      local at, number = read(call('LINDEX', key, 0))
      if at > now - span then
        break
      end
      call('LPOP', key)
      total = total - number
    end
    call('LPUSH', key, total)
    kept = total
  end
  local admitted = hits <= 0 or total + hits <= limit
  if hits > 0 and admitted then
    local at, number = max(newest, now), hits
    if total > 0 and newest == at then
      local _, more = read(call('RPOP', key))
      number = number + more
    elseif kept == 0 then
      call('DEL', key)
      call('RPUSH', key, 0)
    end
    put(at, number)
    total = total + hits
  end
  local left = hits < 0 and min(-hits, total) or 0
  total = total - left
  while left > 0 do
    local at, number = read(call('RPOP', key))
    if number > left then
      put(at, number - left)
    end
    left = max(left - number, 0)
  end
  newest = total > 0 and read(call('LINDEX', key, -1)) or 0
  if total == 0 then
    call('DEL', key)
  elseif total ~= kept then
    call('LSET', key, 0, total)
    call('EXPIRE', key, ceil((newest + span - now) / 1000000))
  end
  local in_the_way = 0
  if not admitted and hits <= limit then
    in_the_way = newest_of_oldest(key, total + hits - limit)
  end
  return admitted, total, newest, in_the_way
end

local answer = {now}
for at, key in ipairs(KEYS) do
  local kind, hits, most, a, b = read_packed('<ddddd', ARGV[2], at * 40 - 39)
  local count = kind == 1 and bucket or kind == 2 and window or log
  local admitted, x, y, z = count(key, hits, most, a, b)
  local to = at * 4
  answer[to - 2], answer[to - 1], answer[to], answer[to + 1] = admitted and 1 or 0, x, y, z
end
for _, key in ipairs(changed) do
  call('SETEX', key, lives[key], states[key])
end
return answer
