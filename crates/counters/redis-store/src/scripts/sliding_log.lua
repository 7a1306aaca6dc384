-- Sliding logs. A log is a list of entries, oldest first: a microsecond, and the number of all hits up to it, in 32 bits
-- that overflow. The first entry is the last one before the window: hits after it count.
--
-- Instead of a log, its number of hits before is returned and, for each run, the time of the newest afterwards, and that
-- of the last one that blocks rejected hits, or 0.
local OVERFLOW = 4294967296

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
-- the time of the newest; an error if the key has a foreign value.
local function open(key, present, past)
  local oldest = pcall('LRANGE', key, '0', '2')
  if oldest.err then
    return oldest
  elseif not oldest[1] then
    return false, 0, 0, 0
  end
  local _, expired = read(oldest[1])
  local newest, sum = read(call('LINDEX', key, '-1'))
  local total = (sum - expired) % OVERFLOW
  if newest == 0 then
    return FOREIGN
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

-- The functions of the log that was loaded last.
function algorithms.l(jitter, limit, length)
  local present = second * 1000000 + micros
  local key, exists, expired, total, newest, reply

  local function load(name)
    key = name
    exists, expired, total, newest = open(key, present, present - length * 1000000)
    reply = { total }
    return type(exists) == 'table' and exists or reply
  end

  local function fits(_, hits, times)
    if hits <= 0 then
      return times
    end
    local fit = (limit - total) / hits
    return max(fit - fit % 1, 0)
  end

  -- Counts the hits of `fit` of the callers; `own` would fit into this log.
  local function add(hits, times, fit, own)
    local blocking = 0
    if hits < 0 and total > 0 then
      -- The newest hits are refunded first.
      total = max(total + hits * times, 0)
      if total > 0 then
        local place = find(key, 1, expired, 2, total)
        newest = read(call('LINDEX', key, whole(place)))
        call('LTRIM', key, '0', whole(place - 1))
        append(key, newest, expired + total)
      else
        exists, newest = false, 0
        call('DEL', key)
      end
    elseif hits > 0 and fit > 0 then
      local is_new, second_before = not exists, newest - newest % 1000000
      newest, total, exists = max(newest, present), total + fit * hits, true
      if is_new then
        append(key, 0, expired)
      end
      append(key, newest, expired + total)
      if newest - second_before >= 1000000 then
        -- Rounded up to a second, one more because time may stand still after the clock was set back, and one for all
        -- hits of this second.
        local lasts = whole(length + 3 + jitter)
        if type(pcall('EXPIRE', key, lasts)) == 'table' then
          -- It is denied: nothing is counted, and the script fails.
          call('LTRIM', key, is_new and '1' or '0', is_new and '0' or '-2')
          call('EXPIRE', key, lasts)
        end
      end
    end
    -- If another limit admits fewer, no entry of this log blocks the next caller.
    if hits > 0 and fit < times and own <= fit and hits <= limit then
      blocking = read(call('LINDEX', key, whole(find(key, 1, expired, 2, total + hits - limit))))
    end
    reply[#reply + 1], reply[#reply + 2] = newest, blocking
  end

  return fits, nil, load, add
end
