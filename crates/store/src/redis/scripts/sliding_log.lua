-- Sliding logs. A log is a list of entries, oldest first: a microsecond, and the number of all hits up to it, in 32 bits
-- that overflow. The first entry is the last one before the window: hits after it count.
local OVERFLOW = 4294967296
local present = second * 1000000 + micros

-- The time of an entry, and its number of hits.
local function read(entry)
  if #entry ~= 11 then
    return 0, 0
  end
  return unpacked('<I7I4', entry)
end

local function append(key, moment, sum)
  call('RPUSH', key, pack('<I7I4', moment, sum % OVERFLOW))
end

-- The index of the first entry from `from` on whose time (field 1), or whose hits since `expired` (field 2), is at least
-- `least`. A binary search that begins at the most likely index.
local function find(key, from, expired, field, least)
  local to, middle = call('LLEN', key), from
  while from < to do
    local moment, sum = read(call('LINDEX', key, whole(middle)))
    if (field == 1 and moment or (sum - expired) % OVERFLOW) < least then
      from = middle + 1
    else
      to = middle
    end
    middle = from + to
    middle = (middle - middle % 2) / 2
  end
  return from
end

-- Removes entries before the window. Returns whether there is a log, its numbers of hits before and in the window, and
-- the time of the newest; nil if the key has a foreign value.
local function open(key, past)
  local oldest = redis.pcall('LRANGE', key, '0', '2')
  if oldest.err then
    return nil
  elseif not oldest[1] then
    return false, 0, 0, 0
  end
  local _, expired = read(oldest[1])
  local newest, sum = read(call('LINDEX', key, '-1'))
  local total = (sum - expired) % OVERFLOW
  if newest == 0 then
    return nil
  elseif total == 0 then
    return true, sum, 0, 0
  elseif newest > present + 1000000 then
    -- The clock was set back: entries in the future count as of now.
    call('LTRIM', key, '0', whole(find(key, 1, expired, 1, present + 1) - 1))
    append(key, present, sum)
    newest = present
  end
  local moment, left = read(oldest[2])
  if newest <= past then
    call('LTRIM', key, '-1', '-1')
    return true, sum, 0, 0
  elseif moment <= past then
    local first = 2
    if oldest[3] and read(oldest[3]) <= past then
      first = find(key, 3, expired, 1, past + 1)
      _, left = read(call('LINDEX', key, whole(first - 1)))
    end
    call('LTRIM', key, whole(first - 1), '-1')
    total, expired = (sum - left) % OVERFLOW, left
  end
  return true, expired, total, newest
end

-- Counts hits in a key's log. Returns a list of the number of hits before and, for each run, the time of the newest
-- afterwards, and that of the last one that blocks rejected hits, or 0; whether all was admitted; and how many callers
-- of the last run fit. A trial changes nothing. At most `most` callers of a run are admitted, if given. FOREIGN if the
-- key has a foreign value.
local function count_log(key, argument, is_trial, most)
  local exists, expired, total, newest = open(key, present - argument.length * 1000000)
  if exists == nil then
    return FOREIGN
  end
  local reply, admitted, limit, fit = { total }, true, argument.limit, 0
  for i = 1, #argument.runs - 1, 2 do
    local hits, times, blocking = argument.runs[i], argument.runs[i + 1], 0
    fit = times
    if hits < 0 and total > 0 and not is_trial then
      -- The newest hits are refunded first.
      total = math.max(total + hits * times, 0)
      if total > 0 then
        local place = find(key, 1, expired, 2, total)
        newest = read(call('LINDEX', key, whole(place)))
        call('LTRIM', key, '0', whole(place - 1))
        append(key, newest, expired + total)
      else
        exists, newest = false, 0
        call('DEL', key)
      end
    elseif hits > 0 then
      fit = (limit - total) / hits
      fit = math.max(fit - fit % 1, 0)
      -- If another limit admits fewer, no entry of this log blocks the next caller.
      local is_rejected, is_blocking = fit < times, fit <= (most or times)
      fit = math.min(fit, times, most or times)
      if fit > 0 and not is_trial then
        if not exists then
          append(key, 0, expired)
        end
        local second_before = newest - newest % 1000000
        newest, total, exists = math.max(newest, present), total + fit * hits, true
        append(key, newest, expired + total)
        if newest - second_before >= 1000000 then
          -- Rounded up to a second, one more because time may stand still after the clock was set back, and one for all
          -- hits of this second.
          call('EXPIRE', key, whole(argument.length + 3 + argument.jitter))
        end
      end
      if is_rejected then
        admitted = false
        if hits <= limit and is_blocking and not is_trial then
          blocking = read(call('LINDEX', key, whole(find(key, 1, expired, 2, total + hits - limit))))
        end
      end
    end
    reply[i + 1], reply[i + 2] = newest, blocking
  end
  return reply, admitted, fit
end

local function log_limit(argument)
  local jitter, limit, length, _, at = unpacked('<xI4I8I8I8', argument)
  return { jitter = jitter, limit = limit, length = length, runs = runs_from(argument, at) }
end
