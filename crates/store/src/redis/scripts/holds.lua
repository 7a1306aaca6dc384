-- Holds. Each counter has a sorted set of its open holds by the millisecond at which they expire; the member `sum` has what
-- they hold together, negative, so that it comes before all. Each request has a hash of its holds, by the index of the
-- part. Its name begins with `base`, as those of the sorted sets do, so that all of them are in one slot.
local call, pack, unpacked = redis.call, struct.pack, struct.unpack
local max, min = math.max, math.min

-- A double has every integer up to it.
local MOST = 9007199254740992

-- What is held, what an unknown cost charges (-1 for what is held), the time to live, the millisecond at which the hold
-- expires or is forgotten, what it was charged (-1 while it is open), the rule, and the names of the currency, the counter
-- and its sorted set.
local HOLD = '<i8i8i8i8i8I8I2c0I4c0I4c0'

local time = call('TIME')
local now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
now = now - now % 1

local function whole(number)
  return string.format('%d', number)
end

local function read(record, part)
  local text = call('HGET', record, part)
  if not text then
    return nil
  end
  local hold = {}
  hold.held, hold.unknown, hold.ttl, hold.at, hold.charged, hold.rule, hold.currency, hold.counter, hold.set =
    unpacked(HOLD, text)
  return hold
end

local function write(record, part, hold)
  call('HSET', record, part, pack(HOLD, hold.held, hold.unknown, hold.ttl, hold.at, hold.charged, hold.rule,
    #hold.currency, hold.currency, #hold.counter, hold.counter, #hold.set, hold.set))
end

-- Adds to a counter, unless it has ended or has none. Returns what is spent.
local function charge(counter, hits)
  local spent = counter ~= '' and tonumber(call('GET', counter) or '')
  if not spent then
    return 0
  end
  local after = min(max(spent + hits, 0), MOST)
  if after ~= spent then
    call('INCRBY', counter, whole(after - spent))
  end
  return after
end

-- An open hold no longer reserves anything.
local function release(set, member, held)
  if call('ZREM', set, member) == 1 then
    call('ZINCRBY', set, whole(held), 'sum')
  end
end

-- What a hold costs that ended or expired.
local function cost_of(hold)
  return hold.unknown < 0 and hold.held or hold.unknown
end

-- Charges it, and remembers it for one more time to live. Returns what is spent.
local function close(record, part, hold, from)
  local cost = cost_of(hold)
  hold.charged, hold.at = cost, from + hold.ttl
  write(record, part, hold)
  return charge(hold.counter, cost)
end
