-- Holds. The names of what a slot holds begin with one text:
--
--   holds       A hash with the record of each request by its id, what is held of each counter by the name of its set, and
--               the slot's clock: `now`, the last millisecond that was seen, and `behind`, by how much the server's was set
--               back since.
--   due         A sorted set of the requests with open holds, by the millisecond at which the first one expires.
--   ended       A sorted set of the requests whose end or expiry is remembered, by the millisecond until when.
--   holds:NAME  A sorted set of a counter's open holds, by the millisecond at which they expire: `id:part:held`.
--
-- A record is the millisecond at which the request began, then its holds. The record of a request that was cancelled
-- before it came is empty. All times are of the slot's clock. Replies are packed, and numbers are formatted: both are
-- faster than what Redis does.
local call, pack, unpacked, format = redis.call, struct.pack, struct.unpack, string.format
local max, min = math.max, math.min

-- The largest limit and cost. A double has every integer up to it.
local MOST = 9007199254740991

-- What is held, what an unknown cost charges, the time to live, the millisecond at which the hold ended or expired, what
-- it was charged then (-1 while it is open), the rule, the currency, the counter, its set, and the member after the id.
local HOLD = '<i8i8i8i8i8i8I2c0I2c0I2c0I2c0'

-- A hold that was closed: the rule, what was held, what was charged before and is charged now, how (`s` settled, `l`
-- settled late, `e` ended, `c` cancelled, `x` expired), and its set.
local CLOSED = '<i8i8i8i8c1I2c0'

-- The slot's clock is the server's, but stands still while that one goes back: whoever sets it, and whichever server takes
-- over, a hold lasts for its time to live.
local clock, time = call('HMGET', KEYS[1], 'now', 'behind'), call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(clock[2] or 0)
if clock[1] and now < tonumber(clock[1]) then
  call('HINCRBY', KEYS[1], 'behind', format('%d', clock[1] - now))
  now = tonumber(clock[1])
end

-- A key lives longer than this, so that what nobody sweeps is gone one day. No script shortens an expiry.
local function outlive(key, millis)
  if call('PTTL', key) < millis then
    call('PEXPIRE', key, format('%d', 2 * millis))
  end
end

-- Closes holds of a request: `how` is `s` to settle at `cost`, `e` to end, `c` to cancel, or `x` for those that have
-- expired. Remembers `most` requests at most. Returns what it closed.
local function close(keys, most, id, how, cost, currency)
  local records, due, ended = keys[1], keys[2], keys[3]
  local record = call('HGET', records, id)
  if not record and how == 'c' then
    -- The command that holds is still on its way.
    call('HSET', records, id, '', 'now', format('%d', now))
    call('ZADD', ended, format('%d', now + 60000), id)
    outlive(records, 60000)
    outlive(ended, 60000)
  end
  if not record or record == '' then
    if how == 'x' then
      call('HDEL', records, id)
      call('ZREM', due, id)
      call('ZREM', ended, id)
    end
    return ''
  end
  local began, at = unpacked('<i8', record)
  local closed, kept, first, forgotten, was_remembered = '', '', nil, nil, false
  while at <= #record do
    local start, is_done, held, unknown, ttl, since, charged, rule, own, counter, set, suffix = at, false
    held, unknown, ttl, since, charged, rule, own, counter, set, suffix, at = unpacked(HOLD, record, at)
    -- A request at a time has no cost.
    local is_free = counter == ''
    local is_meant, expires, part = not currency or currency == own, began + ttl, nil
    was_remembered = was_remembered or charged >= 0
    repeat
      -- What the hold is charged before and after, and how it is closed.
      local letter, before, after = nil, max(charged, 0), is_free and 0 or cost
      if charged < 0 and is_meant and (how ~= 'x' or expires <= now) then
        letter = expires <= now and 'x' or how
        if call('ZREM', set, id .. suffix) == 1 and call('HINCRBY', records, set, format('%d', -held)) <= 0 then
          call('HDEL', records, set)
        end
        if letter == 'x' or letter == 'e' then
          charged = is_free and 0 or unknown
          after, since = charged, min(expires, now)
          part = pack(HOLD, held, unknown, ttl, since, charged, rule, #own, own, #counter, counter, #set, set, #suffix, suffix)
        else
          is_done = true
        end
      elseif charged >= 0 and is_meant and (how == 's' or how == 'c') and since + ttl > now then
        letter, is_done = 'l', true
      end
      if letter then
        -- The counter's window may have ended.
        local spent = after ~= before and counter ~= '' and tonumber(call('GET', counter) or '')
        if spent then
          call('INCRBY', counter, format('%d', min(max(spent + after - before, 0), MOST) - spent))
        end
        closed = closed .. pack(CLOSED, rule, held, before, after, letter, #set, set)
      end
    until letter ~= 'x' or how == 'x'
    if is_done then
      -- Nothing is left of it.
    elseif charged < 0 then
      first, kept = min(first or expires, expires), kept .. string.sub(record, start, at - 1)
    elseif since + ttl > now and (was_remembered or call('ZCARD', ended) < most) then
      forgotten, kept = max(forgotten or 0, since + ttl), kept .. (part or string.sub(record, start, at - 1))
    end
    if (is_done or part) and at <= #record then
      -- While a slot moves, the next counter may be elsewhere: then this one is not charged again.
      call('HSET', records, id, pack('<i8', began) .. kept .. string.sub(record, at))
    end
  end
  if kept == '' then
    call('HDEL', records, id)
  else
    call('HSET', records, id, pack('<i8', began) .. kept)
  end
  if first then
    call('ZADD', due, format('%d', first), id)
  else
    call('ZREM', due, id)
  end
  if forgotten then
    call('ZADD', ended, format('%d', forgotten), id)
    outlive(ended, forgotten - now)
  elseif was_remembered then
    call('ZREM', ended, id)
  end
  return closed
end

-- Charges what has expired of at most `count` members of a sorted set: of `due`, `ended`, or a counter's holds. Returns what
-- it closed; nil if nothing has expired.
local function sweep(keys, most, set, count)
  local closed
  for _, member in ipairs(call('ZRANGEBYSCORE', set, '-inf', format('%d', now), 'LIMIT', '0', count)) do
    closed = (closed or '') .. close(keys, most, string.match(member, '^[^:]*'), 'x')
    if set ~= keys[2] and set ~= keys[3] then
      -- Its record may have been lost.
      call('ZREM', set, member)
    end
  end
  return closed
end
