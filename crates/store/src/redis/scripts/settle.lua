-- Closes the holds of a request, or those of a few requests that have expired. KEYS: the request's record, and the open
-- requests. ARGV: `base`, the most requests, `s` to settle, `e` to end, `c` to cancel or `x` for those that have expired,
-- the request's id, the cost, and the currency if only its holds are meant.
--
-- Returns the number of open requests; then for each hold that was closed the rule, how (`s` settled, `l` settled late,
-- `e` ended, `c` cancelled, `x` expired), what it held, what was charged before and is charged now, and the name of its
-- sorted set.
local all, base, most, how = KEYS[2], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local closed = { 0 }

local function report(hold, letter, before, after)
  for _, value in ipairs({ whole(hold.rule), letter, hold.held, before, after, hold.set }) do
    closed[#closed + 1] = value
  end
end

local function close_part(record, part, hold, id, cost)
  local is_open = hold.charged < 0
  if is_open and (how ~= 'x' or hold.at <= now) then
    release(hold.set, member_of(id, part, hold), hold.held)
  end
  if is_open and hold.at <= now then
    close(base, most, record, part, hold, hold.at)
    report(hold, 'x', 0, hold.charged)
  elseif is_open and how == 'e' then
    close(base, most, record, part, hold, now)
    report(hold, 'e', 0, hold.charged)
  elseif is_open and how ~= 'x' then
    call('HDEL', record, part)
    charge(hold.counter, cost)
    report(hold, how, 0, cost)
    return
  end
  if (how == 's' or how == 'c') and hold.at > now then
    call('HDEL', record, part)
    charge(hold.counter, cost - hold.charged)
    report(hold, 'l', hold.charged, cost)
  end
end

local function close_request(record, id, cost, currency)
  local found, open = call('HGETALL', record), false
  if how == 'c' and #found == 0 then
    -- The command that holds is still on its way.
    call('HSET', record, 'c', '')
    call('PEXPIRE', record, '60000')
  end
  for at = 1, #found, 2 do
    local hold = found[at] ~= 'c' and parsed(found[at + 1])
    if hold and (not currency or currency == hold.currency) then
      close_part(record, found[at], hold, id, cost)
    elseif hold and hold.charged < 0 then
      open = true
    end
  end
  if not open and (#found > 0 or how == 'x') then
    call('ZREM', all, id)
  end
end

if how == 'x' then
  for _, id in ipairs(call('ZRANGEBYSCORE', all, '-inf', whole(now), 'LIMIT', '0', '100')) do
    close_request(base .. 'hold:' .. id, id)
  end
else
  close_request(KEYS[1], ARGV[4], tonumber(ARGV[5]), ARGV[6])
end
closed[1] = call('ZCARD', all)
return closed
