-- Settles the holds of a request, or ends them. KEYS: the request's record. ARGV: the id, `s` to settle or `e` to end, the
-- cost, and the currency if only its holds are meant.
--
-- Returns for each hold that was closed the rule, how (`s` settled, `l` settled late, `e` ended, `x` expired before), what
-- it held, what was charged before and is charged now, and what is spent.
local record, id, cost, currency = KEYS[1], ARGV[1], tonumber(ARGV[3]), ARGV[4]
local closed = {}

local function report(hold, how, before, after, spent)
  local row = { whole(hold.rule), how, hold.held, before, after, spent }
  for _, value in ipairs(row) do
    closed[#closed + 1] = value
  end
end

for _, part in ipairs(call('HKEYS', record)) do
  local hold = read(record, part)
  local is_meant = not currency or currency == hold.currency
  if is_meant and hold.charged < 0 then
    release(hold.set, id .. ':' .. part .. ':' .. whole(hold.held), hold.held)
    if hold.at <= now then
      local spent = close(record, part, hold, hold.at)
      report(hold, 'x', 0, hold.charged, spent)
    elseif ARGV[2] == 's' then
      call('HDEL', record, part)
      report(hold, 's', 0, cost, charge(hold.counter, cost))
    else
      local spent = close(record, part, hold, now)
      report(hold, 'e', 0, hold.charged, spent)
    end
  end
  if is_meant and ARGV[2] == 's' and hold.charged >= 0 and hold.at > now then
    call('HDEL', record, part)
    report(hold, 'l', hold.charged, cost, charge(hold.counter, cost - hold.charged))
  end
end
return closed
