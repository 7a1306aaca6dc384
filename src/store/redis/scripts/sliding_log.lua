-- Sliding logs. A log is a list of entries, from old to new: a microsecond, and how many hits there had been by
-- then, in 32 bits that overflow. The first entry is the last that has left the window: from it on they count.
local OVERFLOW = 4294967296
local present = second * 1000000 + micros

-- When the hits of an entry were taken, and how many there had been by then.
local function read(entry)
  if #entry ~= 11 then
    return 0, 0
  end
  return unpacked('<I7I4', entry)
end

local function append(key, moment, sum)
  call('RPUSH', key, pack('<I7I4', moment, sum % OVERFLOW))
end

-- The first place from this one on whose moment (1), or whose hits since `gone` (2), are as many as that. It is
-- sought by halving, but first where it mostly is.
local function find(key, from, gone, field, least)
  local to, middle = call('LLEN', key), from
  while from < to do
    local moment, sum = read(call('LINDEX', key, whole(middle)))
    if (field == 1 and moment or (sum - gone) % OVERFLOW) < least then
      from = middle + 1
    else
      to = middle
    end
    middle = from + to
    middle = (middle - middle % 2) / 2
  end
  return from
end

-- Forgets what has left the window. Returns whether there is a log, how many hits have left it, how many are in
-- it and when the newest was taken; or nothing, where something else is under the key.
local function open(key, past)
  local oldest = redis.pcall('LRANGE', key, '0', '2')
  if oldest.err then
    return nil
  elseif not oldest[1] then
    return false, 0, 0, 0
  end
  local _, gone = read(oldest[1])
  local newest, sum = read(call('LINDEX', key, '-1'))
  local total = (sum - gone) % OVERFLOW
  if newest == 0 then
    return nil
  elseif total == 0 then
    return true, sum, 0, 0
  elseif newest > present + 1000000 then
    -- The clock was set back: what lies ahead is taken as if it were of now.
    call('LTRIM', key, '0', whole(find(key, 1, gone, 1, present + 1) - 1))
    append(key, present, sum)
    newest = present
  end
  local moment, left = read(oldest[2])
  if newest <= past then
    call('LTRIM', key, '-1', '-1')
    return true, sum, 0, 0
  elseif moment <= past then
    local behind = 2
    if oldest[3] and read(oldest[3]) <= past then
      behind = find(key, 3, gone, 1, past + 1)
      _, left = read(call('LINDEX', key, whole(behind - 1)))
    end
    call('LTRIM', key, whole(behind - 1), '-1')
    total, gone = (sum - left) % OVERFLOW, left
  end
  return true, gone, total, newest
end

-- Tells of a key's log how many hits there were and, for each run, when the newest was taken afterwards, and
-- the last of those in the way, 0 where there is none; whether all was admitted; and how many callers of the last
-- run fit. A trial takes none, and of a run no more than `most` callers are admitted where that is given. What is
-- under the key and no log is FOREIGN.
local function ask_log(key, asked, is_trial, most)
  local exists, gone, total, newest = open(key, present - asked.length * 1000000)
  if exists == nil then
    return FOREIGN
  end
  local told, admitted, limit, fit = { total }, true, asked.limit, 0
  for i = 1, #asked.runs - 1, 2 do
    local hits, times, way = asked.runs[i], asked.runs[i + 1], 0
    fit = times
    if hits < 0 and total > 0 and not is_trial then
      -- The newest are given back first.
      total = math.max(total + hits * times, 0)
      if total > 0 then
        local place = find(key, 1, gone, 2, total)
        newest = read(call('LINDEX', key, whole(place)))
        call('LTRIM', key, '0', whole(place - 1))
        append(key, newest, gone + total)
      else
        exists, newest = false, 0
        call('DEL', key)
      end
    elseif hits > 0 then
      fit = (limit - total) / hits
      fit = math.max(fit - fit % 1, 0)
      -- Where fewer are admitted elsewhere, nothing here is in the way of the next.
      local is_refused, is_in_the_way = fit < times, fit <= (most or times)
      fit = math.min(fit, times, most or times)
      if fit > 0 and not is_trial then
        if not exists then
          append(key, 0, gone)
        end
        local second_before = newest - newest % 1000000
        newest, total, exists = math.max(newest, present), total + fit * hits, true
        append(key, newest, gone + total)
        if newest - second_before >= 1000000 then
          -- To the next whole second, as long as time may stand still, and for all that comes this second.
          call('EXPIRE', key, whole(asked.length + 3 + asked.slack))
        end
      end
      if is_refused then
        admitted = false
        if hits <= limit and is_in_the_way and not is_trial then
          way = read(call('LINDEX', key, whole(find(key, 1, gone, 2, total + hits - limit))))
        end
      end
    end
    told[i + 1], told[i + 2] = newest, way
  end
  return told, admitted, fit
end

local function asked_of_log(asked)
  local slack, limit, length, _, at = unpacked('<xI4I8I8I8', asked)
  return { slack = slack, limit = limit, length = length, runs = runs_from(asked, at) }
end
